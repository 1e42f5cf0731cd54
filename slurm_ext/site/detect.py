"""What kind of site is this machine part of? Looked for in the files that each kind leaves behind."""

from __future__ import annotations

import os
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.slurm.site_policy import MARKS

#: Where slurm.conf lies, by packager: Debian, Slurm's own default, ParallelCluster and HyperPod, configless nodes.
SLURM_CONF_PATHS = (
    "etc/slurm/slurm.conf",
    "usr/local/etc/slurm.conf",
    "opt/slurm/etc/slurm.conf",
    "etc/slurm-llnl/slurm.conf",
    "run/slurm/conf/slurm.conf",
)


class Site(NamedTuple):
    """The kind of site, why we say so, and its slurm.conf (empty: none found)."""

    type: str
    why: str
    slurm_conf: str


def detect(settings: Settings, *, root: str = "/") -> Site:
    """Return what kind of site this is: what the settings say, else what the files below `root` say, else plain."""
    conf = settings.site.slurm_conf or next(
        (path for path in (os.path.join(root, name) for name in SLURM_CONF_PATHS) if os.path.isfile(path)), ""
    )
    if settings.site.type != "auto":
        return Site(settings.site.type, f"site.type is {settings.site.type}", conf)
    if conf and os.path.isfile(lab := os.path.join(os.path.dirname(conf), "..", "..", "lab.json")):
        return Site("lab", f"{os.path.normpath(lab)} is there", conf)
    for name, kind in MARKS:
        if os.path.exists(path := os.path.join(root, name)):
            return Site(kind, f"{path} is there", conf)
    return Site("plain", "no mark of ParallelCluster, PCS, HyperPod or a lab is there", conf)


#: Kinds that `install` does not write to yet, and what would have to be done by hand there.
BY_HAND: dict[str, tuple[str, ...]] = {
    "parallelcluster": (
        "slurm.conf is generated anew on every update: Prolog, Epilog, TaskProlog and PrologFlags go into the cluster's "
        "configuration, the hooks into the folders prolog.d and epilog.d that ParallelCluster already has",
        "a release in site.prefix on the head node and in the image (or an OnNodeConfigured script) of the nodes",
        "site.share on the shared home or another file system of the cluster",
    ),
    "pcs": (
        "Prolog, Epilog and PrologFlags as custom settings of the cluster, with paths that exist on every node",
        "a release in site.prefix in the image of the nodes and of the login node",
        "fmslurm-controller on a login node, since the controller runs in AWS's account",
    ),
    "hyperpod": (
        "the lifecycle scripts rewrite Prolog and Epilog in slurm.conf: chain our hooks from theirs",
        "a release in site.prefix from the lifecycle script of each instance group",
        "resume.defer_to_hyperpod stays true while HyperPod's own auto-resume is on",
    ),
}
