"""topology.conf and the picture, as text."""

from __future__ import annotations

from slurm_ext.topology.build import build, switch_name
from slurm_ext.topology.model import Placement
from slurm_ext.topology.render import topology_conf
from slurm_ext.topology.render_text import picture

TREE = build([Placement(f"n{i}", f"i-{i}", "p5.48xlarge", ("A", "C1" if i < 3 else "C2"), "az1") for i in range(5)])
ROOT, LEFT, RIGHT = switch_name("l1", "A"), switch_name("l2", "C1"), switch_name("l2", "C2")


def test_every_switch_has_one_line_and_its_cloud_id() -> None:
    lines = topology_conf(TREE, origin="a test").splitlines()
    assert lines[0].startswith("# Written by fmslurm from a test.")
    assert lines[1:] == [
        f"# {ROOT} = A",
        f"SwitchName={ROOT} Switches={LEFT},{RIGHT}",
        f"# {LEFT} = C1",
        f"SwitchName={LEFT} Nodes=n[0-2]",
        f"# {RIGHT} = C2",
        f"SwitchName={RIGHT} Nodes=n[3-4]",
    ]


def test_the_picture_counts_nodes() -> None:
    assert picture(TREE).splitlines() == [
        f"{ROOT} (5 nodes)",
        f"  {LEFT} (3 nodes)  n[0-2]",
        f"  {RIGHT} (2 nodes)  n[3-4]",
    ]
