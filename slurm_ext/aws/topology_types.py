"""What EC2 tells of a type's place in the network, and how many instances make an UltraServer, as facts. Standard library only.

Network nodes: Amazon EC2 user guide, "Prerequisites for Amazon EC2 topology" (as of 2026-11-30). It holds for
DescribeInstanceTopology; a capacity reservation has one to three, by its kind and state. UltraServers: Amazon EKS user guide, "Use
P6e-GB200 UltraServers", and AWS PCS user guide, "Configure UltraServer instances". What is not here is not known.
"""

from __future__ import annotations

#: Families (or `family.size`) for whose instances EC2 names so many network nodes.
_LAYERS: dict[int, str] = {
    3: (
        "g6e g7e hpc6a.48xlarge hpc6id.32xlarge hpc7g hpc7a hpc8a.96xlarge p3dn.24xlarge p4d.24xlarge p4de.24xlarge"
        " p5.48xlarge p5e.48xlarge p5en.48xlarge p6e-gb200.36xlarge trn1.2xlarge trn1.32xlarge trn1n.32xlarge trn2.48xlarge"
        " trn2u.48xlarge"
    ),
    4: "p6-b200.48xlarge p6-b300.48xlarge",
}

#: Families whose GPUs are joined over several instances -> instances in an UltraServer, smallest first (u-p6e-gb200x36 and x72 have 36
#: and 72 GPUs, four an instance). Those of GB300 are taken as GB200's.
_ULTRASERVERS: dict[str, tuple[int, ...]] = {"p6e-gb200": (9, 18), "p6e-gb300": (9, 18), "p6e-gb300r": (9, 18)}

#: The most instances that any NVLink domain of EC2 has.
LARGEST_DOMAIN = max(sizes[-1] for sizes in _ULTRASERVERS.values())


def layers(name: str) -> int | None:
    """Return how many network nodes EC2 names for an instance of this type, None where AWS's page does not list it."""
    family = name.partition(".")[0]
    for count, words in _LAYERS.items():
        if name in words.split() or family in words.split():
            return count
    return None


def is_ultraserver(name: str) -> bool:
    """Say whether instances of this type are parts of UltraServers."""
    return name.partition(".")[0] in _ULTRASERVERS


def ultraserver_sizes(name: str) -> tuple[int, ...]:
    """Return how many instances of this type an UltraServer may have, smallest first; empty where that is not known."""
    return _ULTRASERVERS.get(name.partition(".")[0], ())
