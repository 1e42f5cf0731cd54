"""Topology files that are wrong in one way each, or look so: what the linter must call them, and what a real slurmctld does.

`fatal` says in which releases slurmctld does not start: "" never, "all", or releases from one on (>), or before one (<).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

TREE, BLOCK = "TopologyPlugin=topology/tree", "TopologyPlugin=topology/block"

#: All cases are for a cluster of these.
NODES = "n[0-7]"

_LONG = "a" * 65
_TAIL = "9" * 20
_PAIR = "SwitchName=b Nodes=n[0-3]\nSwitchName=c Nodes=n[4-7]\n"
_TWO_BLOCKS = "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[4-7]\n"


class Case(NamedTuple):
    name: str
    rule: str
    fatal: str
    conf: str | None = None
    yaml: str | None = None
    slurm: str = TREE
    partition: str = ""
    #: More of the line that defines the nodes.
    node: str = ""
    #: The rule is there from this release on.
    since: tuple[int, int] = (0, 0)
    #: Files that an Include names.
    beside: Mapping[str, str] = MappingProxyType({})

    @property
    def files(self) -> dict[str, str]:
        found = {"topology.conf": self.conf, "topology.yaml": self.yaml}
        return {name: text for name, text in found.items() if text is not None}

    def stops(self, feature: tuple[int, int]) -> bool:
        """Say whether slurmctld of a feature release does not start."""
        if self.fatal == "all":
            return True
        spans = [(text[0], (int(text[1:3]), int(text[4:6]))) for text in self.fatal.split("|") if text]
        return any((feature >= since) is (sign == ">") for sign, since in spans)


def chain(tiers: int, *, parents_first: bool) -> str:
    lines = [f"SwitchName=s{i} Switches=s{i + 1}" for i in range(tiers - 1)]
    lines.append(f"SwitchName=s{tiers - 1} Nodes={NODES}")
    return "\n".join(lines if parents_first else reversed(lines)) + "\n"


def tree_yaml(*switches: str) -> str:
    return "- topology: efa\n  cluster_default: true\n  tree:\n    switches:\n" + "".join(
        f"      - {s}\n" for s in switches
    )


def block_yaml(sizes: str, *blocks: str) -> str:
    head = "- topology: nvl\n  cluster_default: true\n  block:\n"
    return head + f"    block_sizes: {sizes}\n    blocks:\n" + "".join(f"      - {b}\n" for b in blocks)


_LEAVES = ("{switch: b, nodes: 'n[0-3]'}", "{switch: c, nodes: 'n[4-7]'}")
_BLOCKS = ("{block: x, nodes: 'n[0-3]'}", "{block: y, nodes: 'n[4-7]'}")
GOOD_YAML = tree_yaml("{switch: a, children: 'b,c'}", *_LEAVES) + block_yaml("[4, 8]", *_BLOCKS).replace(
    "true", "false"
)
_PAGE = GOOD_YAML + "#" * (4095 - len(GOOD_YAML)) + "\n"

CONF_CASES = (
    Case("a tree", "", "", f"SwitchName=a Switches=b,c\n{_PAIR}"),
    Case("children in brackets", "", "", "SwitchName=a Switches=l[1-2]\nSwitchName=l1 Nodes=n[0-3]\nSwitchName=l2 Nodes=n[4-7]\n"),
    Case("two roots", "tree.forest", "", _PAIR),
    Case("keys in any case, a continuation, a comment, quotes", "", "", 'switchname="a" \\\n NODES="n[0-3],n[4-7]" # words\n'),
    Case("carriage returns", "", "", f"SwitchName=a Nodes={NODES}\r\n"),
    Case("letters of other tongues", "", "", f"# ünï\nSwitchName=ä Nodes={NODES}\n"),
    Case("nothing but a comment", "conf.empty", ">25.11", "# nothing\n"),
    Case("an empty file", "conf.empty", ">25.11", ""),
    Case("a switch twice", "tree.duplicate", "all", "SwitchName=b Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\n"),
    Case("an unknown child", "tree.unknown-child", "all", f"SwitchName=a Switches=b,zz\nSwitchName=b Nodes={NODES}\n"),
    Case("a switch that is its own child", "tree.not-a-tree", "all", f"SwitchName=a Switches=b,a\nSwitchName=b Nodes={NODES}\n"),
    Case("a circle", "tree.not-a-tree", "all", f"SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes={NODES}\n"),
    Case("nodes and switches", "tree.both", "all", "SwitchName=a Switches=b Nodes=n0\nSwitchName=b Nodes=n[1-7]\n"),
    Case("neither nodes nor switches", "tree.childless", "<25.05", f"SwitchName=a\nSwitchName=b Nodes={NODES}\n"),
    Case("an empty list of children", "tree.empty-children", "all", f'SwitchName=a Switches=""\nSwitchName=b Nodes={NODES}\n'),
    Case("an empty list of nodes", "", "", f'SwitchName=a Nodes=""\nSwitchName=b Nodes={NODES}\n'),
    Case("22 tiers, parents first", "", "", chain(22, parents_first=True)),
    Case("23 tiers, parents first", "tree.not-a-tree", "all", chain(23, parents_first=True)),
    Case("40 tiers, leaves first", "", "", chain(40, parents_first=False)),
    Case("a name of 64 characters", "", "", f"SwitchName={_LONG[1:]} Nodes={NODES}\n"),
    Case("a name of 65 characters", "tree.long-name", ">24.05", f"SwitchName={_LONG} Nodes={NODES}\n"),
    Case("text behind a bracket", "hostlist.suffix", "<23.11", f"SwitchName=a Nodes=n[0-3]-ib,{NODES}\n"),
    Case("a bracket that stays open", "hostlist.open", ">23.02", "SwitchName=a Nodes=n[0-\n"),
    Case("a range that runs backwards", "hostlist.bad", "all", "SwitchName=a Nodes=n[5-1]\n"),
    Case("empty brackets", "hostlist.bad", "all", "SwitchName=a Nodes=n[]\n"),
    Case("a range of 100,000", "hostlist.large", "all", "SwitchName=a Nodes=n[0-99999]\n"),
    Case("100,000 prefixes", "hostlist.large", "all", "SwitchName=a Nodes=n[0-49999,50001-99999]x[0-1]\n"),
    Case("letters that no node has", "tree.unknown-node", "", f"SwitchName=a Nodes={NODES},n:1,n$2\n"),
    Case("a child with a tail of 19 digits", "", "", f"SwitchName=a Switches=x{_TAIL[1:]}\nSwitchName=x{_TAIL[1:]} Nodes={NODES}\n"),
    Case("a child with a tail of 20 small digits", "", "",
         f"SwitchName=a Switches=x{'1' * 20}\nSwitchName=x{'1' * 20} Nodes={NODES}\n"),
    Case("a child with a tail of 20 large digits", "tree.digits-child", "all",
         f"SwitchName=a Switches=x{_TAIL}\nSwitchName=x{_TAIL} Nodes={NODES}\n"),
    Case("a child with a tail of zeros", "", "", f"SwitchName=a Switches=x{'0' * 24}1\nSwitchName=x{'0' * 24}1 Nodes={NODES}\n"),
    Case("a leaf with a tail of 20 large digits", "hostlist.digits", "", f"SwitchName=x{_TAIL} Nodes={NODES}\n"),
    Case("an unknown key", "conf.unknown-key", "all", f"SwitchName=a Nodes={NODES} Colour=red\n"),
    Case("an unknown key first", "conf.unknown-key", "all", f"Colour=red\nSwitchName=a Nodes={NODES}\n"),
    Case("Nodes before the name", "conf.unknown-key", "all", f"Nodes={NODES} SwitchName=a\n"),
    Case("a word behind", "conf.parse", "all", f"SwitchName=a Nodes={NODES} word\n"),
    Case("a word alone", "conf.parse", "all", f"word\nSwitchName=a Nodes={NODES}\n"),
    Case("switches and blocks", "conf.mixed", "all", "SwitchName=a Nodes=n[0-3]\nBlockName=b Nodes=n[4-7]\n"),
    Case("a node below two leaves", "tree.node-twice", "",
         "SwitchName=r Switches=a,b\nSwitchName=a Nodes=n[0-4]\nSwitchName=b Nodes=n[4-7]\n"),
    Case("a switch below two parents", "tree.two-parents", "",
         f"SwitchName=a Switches=b\nSwitchName=d Switches=b\nSwitchName=b Nodes={NODES}\n"),
    Case("a node on no switch", "tree.orphans", "", "SwitchName=a Nodes=n[0-6]\n"),
    Case("nodes that nobody defines", "tree.unknown-node", "", f"SwitchName=a Nodes={NODES},zz[0-4]\n"),
    Case("a speed", "tree.link-speed", "", f"SwitchName=a Nodes={NODES} LinkSpeed=5\n"),
)  # fmt: skip

BLOCK_CASES = tuple(
    case._replace(slurm=BLOCK)
    for case in (
        Case("two blocks", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=4,8\n"),
        Case("levels instead of sizes", "conf.unknown-key", "<23.11|>24.05", f"{_TWO_BLOCKS}BlockLevels=0,1\n"),
        Case("a block smaller than the base", "block.small", "<25.05",
             "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[4-6]\nBlockSizes=4,8\n"),
        Case("a block smaller than the first", "block.small", "<25.05", "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[4-6]\n"),
        Case("blocks larger than the base", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=3,6\n"),
        Case("a block of unknown nodes", "block.unknown-node", "<25.05",
             "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=z[4-7]\nBlockSizes=4\n"),
        Case("a block without nodes", "block.no-nodes", "<25.05", "BlockName=a Nodes=n[0-3]\nBlockName=b\nBlockSizes=4\n"),
        Case("blocks without nodes or sizes", "block.nothing", "all", "BlockName=a\nBlockName=b\n"),
        Case("a block twice", "block.duplicate", "all", "BlockName=a Nodes=n[0-3]\nBlockName=a Nodes=n[4-7]\nBlockSizes=4\n"),
        Case("a size that is no doubling", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=4,12\n"),
        Case("a size of nothing", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=0\n"),
        Case("a size in words", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=four\n"),
        Case("sizes that fall", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=4,2\n"),
        Case("a size of 15 doublings", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=4,131072\n"),
        Case("a size of 16 doublings", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=4,262144\n"),
        Case("no block", "conf.empty", "<23.11|>25.11", "# nothing\n"),
        Case("a node in two blocks", "block.node-twice", "<24.05", "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[3-7]\nBlockSizes=4\n"),
        Case("a block's long name", "", "<24.05", f"BlockName={_LONG} Nodes=n[0-3]\nBlockName=b Nodes=n[4-7]\nBlockSizes=4\n"),
    )
)  # fmt: skip

_FLAT = "  flat: true\n"

#: Only where topology.yaml is read: before 25.05 slurmctld never opens it, so nothing in it is fatal.
YAML_CASES = (
    Case("tree and blocks", "", "", yaml=GOOD_YAML),
    Case("one topology without a list", "", "", yaml=f"topology: efa\ntree:\n  switches:\n    - {{switch: a, nodes: '{NODES}'}}\n"),
    Case("nothing at all", "yaml.shape", "all", yaml=""),
    Case("a comment alone", "yaml.shape", "all", yaml="# nothing\n"),
    Case("an empty list", "yaml.shape", "all", yaml="[]\n"),
    Case("one word", "yaml.shape", "all", yaml="word\n"),
    Case("no yaml", "yaml.parse", "all", yaml="- topology: [a\n"),
    Case("a tabulator", "yaml.parse", "all", yaml="- topology: a\n\tflat: true\n"),
    Case("an alias", "yaml.parse", "all", yaml=tree_yaml(f"{{switch: a, nodes: &n '{NODES}'}}", "{switch: b, nodes: *n}")),
    Case("an anchor that nothing uses", "", "", yaml=tree_yaml(f"{{switch: a, nodes: &n '{NODES}'}}")),
    Case("no kind", "yaml.kinds", "all", yaml="- topology: a\n  cluster_default: true\n"),
    Case("an empty tree", "yaml.kinds", "all", yaml="- topology: a\n  tree: {}\n"),
    Case("flat that is not", "yaml.kinds", "all", yaml="- topology: a\n  flat: false\n"),
    Case("two kinds", "yaml.kinds", "all", yaml=tree_yaml(*_LEAVES) + "  block:\n    blocks: [{block: x, nodes: 'n[0-3]'}]\n"),
    Case("no switches", "conf.empty", ">25.11", yaml="- topology: a\n  tree:\n    switches: []\n"),
    Case("nothing for switches", "yaml.shape", "all", yaml="- topology: a\n  tree:\n    switches:\n"),
    Case("a list for a tree", "yaml.shape", "all", yaml="- topology: a\n  tree: [1, 2]\n"),
    Case("flat", "", "", yaml=f"- topology: a\n{_FLAT}"),
    Case("an unknown key", "yaml.unknown-key", "", yaml=f"- topology: a\n  colour: red\n{_FLAT}"),
    Case("an unknown key of a switch", "yaml.unknown-key", "", yaml=tree_yaml(f"{{switch: a, nodes: '{NODES}', colour: red}}")),
    Case("no name", "yaml.unnamed", "", yaml=f"- cluster_default: true\n{_FLAT}"),
    Case("a name twice", "yaml.duplicate", "", yaml=f"- topology: a\n{_FLAT}- topology: a\n{_FLAT}"),
    Case("two defaults", "yaml.defaults", "",
         yaml=f"- topology: a\n  cluster_default: true\n{_FLAT}- topology: b\n  cluster_default: true\n{_FLAT}"),
    Case("no default", "yaml.no-default", "", yaml=f"- topology: a\n{_FLAT}- topology: b\n{_FLAT}"),
    Case("nodes and children", "tree.both-yaml", "", yaml=tree_yaml("{switch: a, nodes: 'n[0-6]', children: b}", "{switch: b, nodes: n7}")),
    Case("a switch without anything", "tree.childless", "", yaml=tree_yaml("{switch: a}", *_LEAVES)),
    Case("a switch without a name", "yaml.shape", "all", yaml=tree_yaml(f"{{nodes: '{NODES}'}}")),
    Case("a long name", "tree.long-name-yaml", "", yaml=tree_yaml(f"{{switch: {_LONG}, nodes: '{NODES}'}}")),
    Case("an unknown child", "tree.unknown-child", "all", yaml=tree_yaml(f"{{switch: a, nodes: '{NODES}'}}", "{switch: b, children: zz}")),
    Case("nodes as a list", "yaml.shape", "all", yaml=tree_yaml("{switch: a, nodes: [n0, n1]}")),
    Case("numbers for names", "", "", yaml=f"- topology: 5\n  tree:\n    switches: [{{switch: 7, nodes: '{NODES}'}}]\n"),
    Case("a size that is no doubling", "block.sizes-yaml", ">26.05", yaml=block_yaml("[4, 12]", *_BLOCKS)),
    Case("sizes in words", "yaml.shape", "all", yaml=block_yaml("four", *_BLOCKS)),
    Case("one size without a list", "", "", yaml=block_yaml("4", *_BLOCKS)),
    Case("small and empty blocks", "block.small", "", yaml=block_yaml("[4]", _BLOCKS[0], "{block: y, nodes: 'n[4-6]'}", "{block: z}")),
    Case("a whole page", "yaml.pages", "<26.05", yaml=_PAGE),
    Case("a partition of blocks", "", "", yaml=GOOD_YAML, partition="PartitionName=a Nodes=ALL Topology=nvl"),
    Case("a partition of nothing", "slurm.topology-unknown", "all", yaml=GOOD_YAML, partition="PartitionName=a Nodes=ALL Topology=zz"),
    Case("a ring", "yaml.new-kind", "<26.05", yaml=f"- topology: a\n  ring:\n    rings: [{{ring: r, nodes: '{NODES}'}}]\n"),
    Case("a node's place", "", "", yaml=GOOD_YAML, node="Topology=efa:a:b,nvl:x"),
    Case("a node's place below a switch that is new", "", "", yaml=GOOD_YAML, node="Topology=efa:a:new,nvl:x"),
    Case("a node's place in half of the topologies", "slurm.node-topology-leaves", "", yaml=GOOD_YAML, node="Topology=efa:a:b",
         since=(25, 11)),
    Case("a node's place in no leaf", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=efa:a"),
    Case("a node's place in no switch", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=efa:new"),
    Case("a node's place in no block", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=nvl:zz"),
    Case("a node's place in no topology", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=zz:a"),
    Case("a node's topology without a place", "slurm.node-topology-none", "", yaml=GOOD_YAML, node="Topology=efa"),
    Case("switches in a file that nothing reads", "slurm.yaml-wins", "", conf="word\n", yaml=GOOD_YAML),
)  # fmt: skip

_ONE = f"SwitchName=a Nodes={NODES}\n"

SLURM_CASES = (
    Case("none", "slurm.plugin-renamed", "", slurm="TopologyPlugin=topology/none", since=(23, 11)),
    Case("default", "slurm.plugin", "<23.11", slurm="TopologyPlugin=topology/default"),
    Case("flat", "slurm.plugin", "<25.05", slurm="TopologyPlugin=topology/flat"),
    Case("a plugin of nobody's", "slurm.plugin", "all", slurm="TopologyPlugin=topology/xyz"),
    Case("a plugin without its folder", "slurm.plugin", "all", _ONE, slurm="TopologyPlugin=tree"),
    Case("torus", "slurm.plugin", "all", slurm="TopologyPlugin=topology/torus"),
    Case("linear", "slurm.linear", ">24.05", _ONE, slurm=f"{TREE}\nSelectType=select/linear"),
    Case("a parameter of nobody's", "slurm.param", "", _ONE, slurm=f"{TREE}\nTopologyParam=Nonsense,TopoOptional"),
    Case("a route plugin", "slurm.route-plugin", "", _ONE, slurm=f"{TREE}\nRoutePlugin=route/topology", since=(23, 11)),
    Case("a tree that the plugin does not read", "slurm.plugin-unset", "", _ONE, slurm=""),
    Case("blocks for a tree", "slurm.plugin-other", "all", "BlockName=b Nodes=n[0-7]\n"),
    Case("a topology for a partition", "slurm.topology-key", "<25.05", _ONE, partition="PartitionName=a Nodes=ALL Topology=default"),
    Case("a topology that is not there", "slurm.topology-conf", "all",
         _ONE, partition="PartitionName=a Nodes=ALL Topology=zz", since=(25, 5)),
    Case("a partition over two roots", "slurm.partition-roots", "", _PAIR),
)  # fmt: skip
