"""How many EFA interfaces an EC2 type has and how the kernel names them, as facts; what is not here is not known.

Counts: EC2 DescribeInstanceTypes, EfaInfo.MaximumEfaInterfaces, as published in getmoto/moto
moto/ec2/resources/instance_types.json (2026-08-22), and aws/aws-parallelcluster#6930 for p6e-gb200. It is the most the
type can have. Names: a topology test of AWS's NCCL plug-in (p4d, p5en, p6-b200, p6-b300, p6e-gb200; p4de taken as p4d) and awslabs'
efa-node-exporter README (p5); a name is `rdmap<PCI bus>s<slot>` in decimal. Standard library only.
"""

from __future__ import annotations

from slurm_ext.aws import catalogue
from slurm_ext.patterns import pattern

#: family:size,size=count ... for every type with EFA. Sizes of these families that are not named have none.
_WITH = (
    "c5n:18xlarge,9xlarge,metal c6a:48xlarge,metal c6gn:16xlarge c6i:32xlarge,metal c6id:32xlarge,metal"
    " c6in:32xlarge=2,metal=2 c7a:48xlarge,metal-48xl c7g:16xlarge,metal c7gd:16xlarge,metal"
    " c7gn:16xlarge,metal c7i:48xlarge,metal-48xl c8a:48xlarge,metal-48xl"
    " c8g:24xlarge,48xlarge,metal-24xl,metal-48xl c8gb:16xlarge,24xlarge,48xlarge=2,metal-24xl,metal-48xl=2"
    " c8gd:24xlarge,48xlarge,metal-24xl,metal-48xl c8gn:16xlarge,24xlarge,48xlarge=2,metal-24xl,metal-48xl=2"
    " c8i:48xlarge,96xlarge,metal-48xl,metal-96xl c8ib:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " c8id:48xlarge,96xlarge,metal-48xl,metal-96xl c8in:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " c9g:48xlarge,metal-48xl c9gd:48xlarge,metal-48xl dl2q:24xlarge f2:48xlarge"
    " g4dn:12xlarge,16xlarge,8xlarge,metal g5:12xlarge,16xlarge,24xlarge,48xlarge,8xlarge"
    " g6:12xlarge,16xlarge,24xlarge,48xlarge,8xlarge g6e:12xlarge,16xlarge,24xlarge=2,48xlarge=4,8xlarge"
    " g7:12xlarge,24xlarge,48xlarge=2,8xlarge g7e:12xlarge,24xlarge=2,48xlarge=4,8xlarge gr6:8xlarge"
    " hpc6a:48xlarge hpc6id:32xlarge=2 hpc7a:12xlarge=2,24xlarge=2,48xlarge=2,96xlarge=2"
    " hpc7g:16xlarge,4xlarge,8xlarge hpc8a:96xlarge=2 i3en:12xlarge,24xlarge,metal i4g:16xlarge"
    " i4i:32xlarge,metal i7i:24xlarge,48xlarge,metal-48xl i7ie:48xlarge,metal-48xl i8g:48xlarge,metal-48xl"
    " i8ge:48xlarge,metal-48xl im4gn:16xlarge inf1:24xlarge m5dn:24xlarge,metal m5n:24xlarge,metal"
    " m5zn:12xlarge,metal m6a:48xlarge,metal m6i:32xlarge,metal m6id:32xlarge,metal m6idn:32xlarge=2,metal=2"
    " m6in:32xlarge=2,metal=2 m7a:48xlarge,metal-48xl m7g:16xlarge,metal m7gd:16xlarge,metal"
    " m7i:48xlarge,metal-48xl m8a:48xlarge,metal-48xl m8azn:24xlarge,metal-24xl"
    " m8g:24xlarge,48xlarge,metal-24xl,metal-48xl m8gb:16xlarge,24xlarge,48xlarge=2,metal-24xl,metal-48xl=2"
    " m8gd:24xlarge,48xlarge,metal-24xl,metal-48xl m8gn:16xlarge,24xlarge,48xlarge=2,metal-24xl,metal-48xl=2"
    " m8i:48xlarge,96xlarge,metal-48xl,metal-96xl m8ib:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " m8id:48xlarge,96xlarge,metal-48xl,metal-96xl m8idb:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " m8idn:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2 m8in:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " m9g:48xlarge,metal-48xl m9gd:48xlarge,metal-48xl p3dn:24xlarge p4d:24xlarge=4 p4de:24xlarge=4"
    " p5:48xlarge=32,4xlarge p5e:48xlarge=32 p5en:48xlarge=16 p6-b200:48xlarge=8 p6-b300:48xlarge=16"
    " r5dn:24xlarge,metal r5n:24xlarge,metal r6a:48xlarge,metal r6i:32xlarge,metal r6id:32xlarge,metal"
    " r6idn:32xlarge=2,metal=2 r6in:32xlarge=2,metal=2 r7a:48xlarge,metal-48xl r7g:16xlarge,metal"
    " r7gd:16xlarge,metal r7i:48xlarge,metal-48xl r7iz:32xlarge,metal-32xl r8a:48xlarge,metal-48xl"
    " r8g:24xlarge,48xlarge,metal-24xl,metal-48xl r8gb:16xlarge,24xlarge,48xlarge=2,metal-24xl,metal-48xl=2"
    " r8gd:24xlarge,48xlarge,metal-24xl,metal-48xl r8gn:16xlarge,24xlarge,48xlarge=2,metal-24xl,metal-48xl=2"
    " r8i:48xlarge,96xlarge,metal-48xl,metal-96xl r8ib:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " r8id:48xlarge,96xlarge,metal-48xl,metal-96xl r8idb:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " r8idn:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2 r8in:48xlarge,96xlarge=2,metal-48xl,metal-96xl=2"
    " trn1:32xlarge=8 trn1n:32xlarge=16 trn2:3xlarge,48xlarge=16 u7i-12tb:224xlarge u7i-6tb:112xlarge"
    " u7i-8tb:112xlarge u7in-16tb:224xlarge=2 u7in-24tb:224xlarge=2 u7in-32tb:224xlarge=2 vt1:24xlarge"
    " x2idn:32xlarge,metal x2iedn:32xlarge,metal x2iezn:12xlarge,metal x8aedz:24xlarge,metal-24xl"
    " x8g:24xlarge,48xlarge,metal-24xl,metal-48xl x8i:48xlarge,64xlarge,96xlarge,metal-48xl,metal-96xl"
)

#: Families of which no size has EFA.
_WITHOUT = (
    "a1 c1 c3 c4 c5 c5a c5ad c5d c6g c6gd c7i-flex c8i-flex c8ine d2 d3 d3en g4ad g5g g6f gr6f h1 i2 i3 inf2"
    " is4gen m1 m2 m3 m4 m5 m5a m5ad m5d m6g m6gd m7i-flex m8i-flex m8ine mac-m3ultra mac-m4 mac-m4max"
    " mac-m4pro mac1 mac2 mac2-m1ultra mac2-m2 mac2-m2pro r3 r4 r5 r5a r5ad r5b r5d r6g r6gd r8i-flex t1 t2 t3"
    " t3a t4g u-3tb1 u-6tb1 x1 x1e x2gd z1d"
)

#: PCI buses (and the slot on each) of the EFA devices of types whose names were published.
_NAMES: dict[str, tuple[tuple[int, ...], int]] = {
    "p4d.24xlarge": ((16, 32, 144, 160), 27),
    "p4de.24xlarge": ((16, 32, 144, 160), 27),
    "p5.48xlarge": (tuple(79 + 17 * group + place for group in range(8) for place in range(4)), 0),
    "p5en.48xlarge": (tuple(85 + 25 * group + place for group in range(4) for place in range(4)), 0),
    "p6-b200.48xlarge": ((79, 80, 96, 97, 113, 114, 132, 133), 0),
    "p6-b300.48xlarge": (tuple(86 + 15 * group + place for group in range(8) for place in range(2)), 0),
    "p6e-gb200.36xlarge": ((39, 40, 54, 55, 61, 62, 76, 77, 154, 155, 169, 170, 176, 177, 191, 192), 0),
}


def efa_devices(name: str) -> int | None:
    """Return how many EFA interfaces an instance type can have, 0 where it has none, None where that is not known."""
    family, dot, size = name.partition(".")
    if not dot or not size:
        return None
    if family == "p6e-gb200":
        return 16 if size == "36xlarge" else None
    for word in _WITH.split():
        known, _, sizes = word.partition(":")
        if known == family:
            counts = dict((part.partition("=")[0], part.partition("=")[2] or "1") for part in sizes.split(","))
            return int(counts.get(size, "0"))
    return 0 if family in _WITHOUT.split() else None


def efa_names(name: str) -> tuple[str, ...]:
    """Return the kernel's names of a type's EFA devices, empty where no source gives them."""
    buses, slot = _NAMES.get(name, ((), 0))
    return tuple(f"rdmap{bus}s{slot}" for bus in buses)


#: Families without GPUDirect RDMA over EFA (AWS: "EC2 instance types", accelerated computing, EFA notes; checked 2026-11), and a type
#: that has it by no promise: the plugin itself does not ask for it (platform-aws.cpp of aws-ofi-nccl).
_WITHOUT_GPUDIRECT = ("g4dn.", "g5.", "g5g.", "g6.", "g6e.", "gr6.", "g6f.", "g7e.", "p5.4xlarge")

#: Types where the plugin chooses the protocol with RDMA writes (platform-aws.cpp of aws-ofi-nccl, checked 2026-11).
_RDMA_WRITE = pattern(r"p5\.48|p5e\.|p5en\.|p[6-9]|p[1-9]\d")


def has_gpudirect(name: str) -> bool | None:
    """Return whether a type has GPUDirect RDMA over EFA: False where AWS promises none, None where no table of ours has it."""
    if name.startswith(_WITHOUT_GPUDIRECT):
        return False
    return True if name in catalogue.CATALOGUE else None


def has_rdma_write(name: str) -> bool:
    """Say whether NCCL's plugin chooses RDMA writes on a type."""
    return _RDMA_WRITE.match(name) is not None
