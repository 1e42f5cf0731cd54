"""More files for the table: as other tools write them, and odd in the ways in which a parser in C is odd."""

from __future__ import annotations

from topology_cases import BLOCK, GOOD_YAML, NODES, TREE, Case, block_yaml, tree_yaml

_ONE = f"SwitchName=a Nodes={NODES}\n"
_TWO_BLOCKS = "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[4-7]\n"


def nodes(text: str) -> str:
    return f"SwitchName=a Nodes={text}\n"


#: In the manner of other generators: raw ids of a cloud, comments with ids, placeholders, racks with hashes, one root.
_PEERS = (
    Case("raw ids of EC2", "", "",
         "SwitchName=nn-0f3a1c5d7e9b2468a Switches=nn-1b2c3d4e5f607182f,nn-2c3d4e5f60718293e\n"
         "SwitchName=nn-1b2c3d4e5f607182f Nodes=n[0-3]\nSwitchName=nn-2c3d4e5f60718293e Nodes=n[4-7]\n"),
    Case("a raw id of EC2 that ends in digits", "", "",
         "SwitchName=nn-top Switches=nn-a12345678901234567\nSwitchName=nn-a12345678901234567 Nodes=n[0-7]\n"),
    Case("ids as comments above each switch, a leaf for the rest", "", "",
         "# sw1=spine-0001\nSwitchName=sw1 Switches=leaf[1-2],no-topology\n# leaf1=tor-a\nSwitchName=leaf1 Nodes=n[0-2]\n"
         "# leaf2=tor-b\nSwitchName=leaf2 Nodes=n[3-5]\nSwitchName=no-topology Nodes=n[6-7]\n"),
    Case("racks that end in a hash", "", "",
         "SwitchName=inst-0_3f2a9c Nodes=n[0-3]\nSwitchName=inst-1_77be01 Nodes=n[4-7]\n"
         "SwitchName=rdma.block_9d1 Switches=inst-0_3f2a9c,inst-1_77be01\n"),
    Case("a switch for each set of nodes below one root", "", "",
         "SwitchName=slurm-root Switches=s0,ns_gpu\nSwitchName=s0 Switches=s0_0\n"
         "SwitchName=s0_0 Nodes=n[0-3]\nSwitchName=ns_gpu Nodes=n[4-7]\n"),
    Case("switches of a scale set, named by numbers", "", "",
         "# Number of Nodes in sw00: 4\nSwitchName=sw00 Nodes=n0,n1,n2,n3\n# Number of Nodes in sw01: 4\n"
         "SwitchName=sw01 Nodes=n4,n5,n6,n7\nSwitchName=sw02 Switches=sw00,sw01\n"),
    Case("an empty leaf kept for a rack that is off", "", "", f'{_ONE}SwitchName=rack7 Nodes=""\nSwitchName=top Switches=a,rack7\n'),
    Case("the manual's own form", "", "",
         "SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-7]\nSwitchName=s2 Switches=s[0-1]\n"),
)  # fmt: skip

CONF_MORE = (
    *_PEERS,
    # How lines are read.
    Case("spaces around the sign", "", "", f"SwitchName = a Nodes = {NODES}\n"),
    Case("a name that is missing", "tree.childless", "<25.05", f"SwitchName= Nodes={NODES}\n"),
    Case("a sign before the sign", "", "", f"SwitchName=a Nodes+={NODES}\n"),
    Case("a key twice", "", "", f"SwitchName=a Nodes=n0 Nodes={NODES}\n"),
    Case("a quote that stays open", "tree.unknown-node", "", f'SwitchName=a Nodes="{NODES}\n'),
    Case("a comment that a backslash spares", "", "", f"SwitchName=a\\#b Nodes={NODES}\n"),
    Case("a comment that ends in a backslash", "", "", f"# words \\\nSwitchName=a Nodes={NODES}\n"),
    Case("a byte order mark", "conf.parse", "all", f"\ufeff{_ONE}"),
    Case("a semicolon for a comment", "conf.parse", "all", f"; words\n{_ONE}"),
    Case("a NUL at the end of a line", "", "", f"SwitchName=a Nodes={NODES}\0 words\n"),
    Case("a line of NUL", "", "", f"{_ONE}\0\n"),
    Case("nothing in front of a NUL", "conf.empty", ">25.11", f"\0{_ONE}"),
    Case("a carriage return alone", "", "", f"SwitchName=a\rNodes={NODES}\n"),
    Case("a space of no width", "conf.parse", "all", f"SwitchName=a\u00a0Nodes={NODES} \u200b\n"),
    Case("a file that is included", "", "", "Include more.conf\n", beside={"more.conf": _ONE}),
    Case("a file that includes itself", "conf.circle", "all", "Include more.conf\n", beside={"more.conf": "Include more.conf\n"}),
    Case("words in a file that is included", "conf.parse", "all", "Include more.conf\n", beside={"more.conf": "words\n"}),
    Case("a speed of a billion", "tree.link-speed", "", f"{_ONE[:-1]} LinkSpeed=0x3B9ACA00\n"),
    Case("a speed with a unit", "tree.link-speed-number", "all", f'{_ONE[:-1]} LinkSpeed="10 Gb/s"\n'),
    Case("a speed below nothing", "tree.link-speed-number", "all", f"{_ONE[:-1]} LinkSpeed=-5\n"),
    Case("a speed that no number holds", "tree.link-speed-number", "all", f"{_ONE[:-1]} LinkSpeed=4294967296\n"),
    Case("sizes beside switches", "conf.unknown-key", "all", f"BlockSizes=4\n{_ONE}"),
    Case("a line of slurm.conf", "conf.unknown-key", "all", f"ClusterName=x\n{_ONE}"),
    # How hostlists are read.
    Case("a range that goes on behind a dash", "", "", nodes("n[0-],n[1-7]")),
    Case("a range with letters in its first number", "tree.unknown-node", "", nodes(f"{NODES},n[1abc-5]")),
    Case("spaces in brackets", "tree.unknown-node", "", f'SwitchName=a Nodes="{NODES},n[0 - 7]"\n'),
    Case("a list in brackets with a space", "tree.unknown-node", "", f'SwitchName=a Nodes="{NODES},n[0-3, 4-7]"\n'),
    Case("a bracket that only closes", "tree.unknown-node", "", nodes(f"{NODES},n0-7]")),
    Case("a bracket of children that stays open", "hostlist.open", "all", f"SwitchName=r Switches=a[\n{_ONE}"),
    Case("a bracket that closes and opens", "hostlist.open", ">23.02", nodes(f"{NODES},n]0[")),
    Case("brackets within brackets", "hostlist.suffix", "<23.11", nodes(f"{NODES},n[[0-7]]")),
    Case("a bracket too many", "hostlist.suffix", "<23.11", nodes(f"{NODES},n[0-7]]")),
    Case("a number beyond 64 bits", "tree.unknown-node", "", nodes(f"{NODES},n[99999999999999999999]")),
    Case("all numbers there are", "", "", nodes(f"{NODES},n[0-9999999999999999999999]")),
    Case("steps in a range", "hostlist.bad", "all", nodes("n[0-7/2]")),
    Case("a hexadecimal range", "hostlist.bad", "all", nodes("n[0-0x7]")),
    Case("letters in a range", "hostlist.bad", "all", nodes("n[a-c]")),
    Case("a range of 65,536", "tree.unknown-node", "", nodes(f"{NODES},n[0-65535]")),
    Case("a range of 65,537", "hostlist.large", "all", nodes("n[0-65536]")),
    Case("leading zeros", "tree.unknown-node", "", nodes(f"{NODES},n[00-07]")),
    Case("text behind a bracket that looks like space", "hostlist.suffix", "<23.11", nodes("n[0-7]\u2028") + "SwitchName=b Nodes=n[0-7]\n"),
    Case("capitals, underscores and points", "tree.unknown-node", "", nodes(f"{NODES},N0,n_1,n1.example.com")),
    Case("only a comma", "tree.orphans", "", nodes(",")),
    Case("children with leading zeros", "tree.unknown-child", "all",
         "SwitchName=a Switches=x[01-02]\nSwitchName=x1 Nodes=n[0-3]\nSwitchName=x2 Nodes=n[4-7]\n"),
    Case("a child in other letters", "tree.unknown-child", "all", f"SwitchName=r Switches=A\n{_ONE}"),
    Case("a child that is a node", "tree.unknown-child", "all", f"SwitchName=r Switches=a,n0\n{_ONE}"),
)  # fmt: skip

BLOCK_MORE = tuple(
    case._replace(slurm=BLOCK)
    for case in (
        Case("sizes before the blocks", "", "<24.05", f"BlockSizes=4,8\n{_TWO_BLOCKS}"),
        Case("sizes twice", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=3,5\nBlockSizes=4\n"),
        Case("sizes with a space", "conf.parse", "all", f"{_TWO_BLOCKS}BlockSizes=4, 8\n"),
        Case("sizes in quotes", "", "<24.05", f'{_TWO_BLOCKS}BlockSizes="4, 8"\n'),
        Case("sizes with letters behind", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=4x,8\n"),
        Case("an empty size", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=,4,,8\n"),
        Case("no size", "block.sizes", "all", f'{_TWO_BLOCKS}BlockSizes=""\n'),
        Case("wrong sizes and no block", "block.sizes", "all", "BlockSizes=4,12\n"),
        Case("a size of 65,536", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=65536\n"),
        Case("a size of 65,537", "block.sizes", "all", f"{_TWO_BLOCKS}BlockSizes=65537\n"),
        Case("a size of which 32 bits are 4", "", "<24.05", f"{_TWO_BLOCKS}BlockSizes=4294967300\n"),
        Case("two blocks of the same nodes", "block.node-twice", "<24.05",
             "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[0-3]\nBlockSizes=4\n"),
        Case("switches beside sizes", "conf.unknown-key", "all", f"BlockSizes=4\n{_ONE}"),
        Case("switches alone", "slurm.plugin-other", "all", _ONE),
        Case("an empty block at the end", "block.small", "<25.05", f'{_TWO_BLOCKS}BlockName=c Nodes=""\nBlockSizes=4\n'),
        Case("placeholders for blocks that are not bought", "block.no-nodes", "<25.05",
             f"{_TWO_BLOCKS}BlockName=block003\nBlockName=block004\nBlockSizes=4,8,16\n"),
        Case("blocks that are commented out", "block.orphans", "<24.05",
             "BlockName=a Nodes=n[0-3]\n#BlockName=b Nodes=n[4-6]\nBlockSizes=4\n"),
        Case("half an UltraServer", "block.small", "<25.05", "BlockName=us1 Nodes=n[0-3]\nBlockName=us2 Nodes=n[4-5]\nBlockSizes=4,8\n"),
        Case("a key of switches", "conf.unknown-key", "all", f"{_TWO_BLOCKS[:-1]} LinkSpeed=4\n"),
    )
)  # fmt: skip

_SWITCHES = ("{switch: b, nodes: 'n[0-3]'}", "{switch: c, nodes: 'n[4-7]'}")
_BLOCKS = ("{block: x, nodes: 'n[0-3]'}", "{block: y, nodes: 'n[4-7]'}")
_FLAT = "- topology: a\n  flat: "

YAML_MORE = (
    Case("a plugin that nothing reads", "", "", yaml=GOOD_YAML, slurm="TopologyPlugin=tree"),
    Case("a tree for the cluster and blocks padded with empty ones", "block.no-nodes", "",
         yaml=tree_yaml("{switch: slurm-root, children: 's[0-1]'}", "{switch: s0, nodes: 'n[0-3]'}", "{switch: s1, nodes: 'n[4-7]'}")
         + block_yaml("[4, 8, 16]", *_BLOCKS, "{block: block003}", "{block: block004}").replace("true", "false")),
    Case("unknown nodes at first, one root for each fabric", "tree.forest", "",
         yaml=tree_yaml("{switch: root-1, children: 'leaf-1,unknown'}", "{switch: leaf-1, nodes: 'n[0-3]'}", "{switch: unknown, nodes: ''}",
                        "{switch: root-2, children: leaf-2}", "{switch: leaf-2, nodes: 'n[4-7]'}")),
    Case("JSON", "", "", yaml='[{"topology": "a", "tree": {"switches": [{"switch": "s", "nodes": "n[0-7]"}]}}]\n'),
    Case("a list of nodes over lines", "", "",
         yaml="- topology: a\n  tree:\n    switches:\n    - switch: s\n      nodes: >-\n        n[0-3],\n        n[4-7]\n"),
    Case("two documents", "", "", yaml=f"{GOOD_YAML}---\n{_FLAT}true\n"),
    Case("a version of the language", "", "", yaml=f"%YAML 1.1\n---\n{GOOD_YAML}"),
    Case("a byte order mark", "", "", yaml=f"\ufeff{GOOD_YAML}"),
    Case("carriage returns", "", "", yaml=GOOD_YAML.replace("\n", "\r\n")),
    Case("a NUL at the end", "", "", yaml=f"{GOOD_YAML}\0 : words\n"),
    Case("a mapping for a key", "yaml.parse", "all", yaml=f"- ? {{a: b}}\n  : x\n  {_FLAT[2:]}true\n"),
    Case("a list for a key", "yaml.parse", "all", yaml=f"- ? [a]\n  : x\n  {_FLAT[2:]}true\n"),
    Case("a tilde for nodes", "tree.unknown-node", "", yaml=tree_yaml("{switch: a, nodes: ~}", *_SWITCHES)),
    Case("a tilde for children", "tree.unknown-child", "all", yaml=tree_yaml("{switch: a, children: ~}", *_SWITCHES)),
    Case("a tilde for a tree", "yaml.shape", "all", yaml=f"{_FLAT}true\n  tree: ~\n"),
    Case("a tilde for sizes", "yaml.shape", "all", yaml=block_yaml("~", *_BLOCKS)),
    Case("an empty name of a switch", "", "", yaml=tree_yaml("{switch: '', nodes: n0}", "{switch: b, nodes: 'n[1-7]'}")),
    Case("no children in a list of them", "tree.empty-children", "all", yaml=tree_yaml("{switch: a, children: ''}", *_SWITCHES)),
    Case("a list for a name", "yaml.shape", "all", yaml="- topology: [a]\n  flat: true\n"),
    Case("a list for a yes", "yaml.shape", "all", yaml=f"{_FLAT}true\n  cluster_default: []\n"),
    Case("any word for a yes", "", "", yaml=f"{_FLAT}maybe\n"),
    Case("a number for a yes", "", "", yaml=f"{_FLAT}2\n"),
    Case("a no in quotes", "yaml.kinds", "all", yaml=f"{_FLAT}'false'\n"),
    Case("nothing for a yes", "yaml.kinds", "all", yaml=f"{_FLAT}''\n"),
    Case("a list for flat", "yaml.shape", "all", yaml=f"{_FLAT}[1]\n"),
    Case("flat with keys", "yaml.new-kind", "<26.05", yaml=f"{_FLAT}{{alpha_step_rank: true}}\n"),
    Case("flat with no keys", "yaml.new-kind", "<26.05", yaml=f"{_FLAT}{{}}\n"),
    Case("flat with no keys, and a tree", "yaml.kinds", "all", yaml=f"{_FLAT}{{}}\n  tree:\n    switches: [{{switch: s, nodes: n0}}]\n"),
    Case("a key twice, the last one no", "yaml.kinds", "all", yaml=f"{_FLAT}true\n  flat: false\n"),
    Case("a tree twice", "", "", yaml=f"{tree_yaml('{switch: a, nodes: n0}')}  tree:\n    switches: [{{switch: t, nodes: '{NODES}'}}]\n"),
    Case("a size in hexadecimal", "", "", yaml=block_yaml("['0x4', 8]", *_BLOCKS)),
    Case("a size of 33 bits", "yaml.shape", "all", yaml=block_yaml("[4294967300]", *_BLOCKS)),
    Case("a size with a point", "yaml.shape", "all", yaml=block_yaml("[4.0]", *_BLOCKS)),
    Case("a size of 65,536", "block.sizes-yaml", "all", yaml=block_yaml("[65536]", *_BLOCKS)),
    Case("names in capitals", "yaml.kinds", "all", yaml="- Topology: a\n  Flat: true\n"),
    Case("topologies in a mapping", "yaml.kinds", "all", yaml="topologies:\n  - topology: a\n    flat: true\n"),
    Case("a place with an empty step", "", "", yaml=GOOD_YAML, node="Topology=efa:a::b,nvl:x"),
    Case("a place below a leaf", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=efa:a:b:new"),
    Case("a block with nothing behind its colon", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=nvl:"),
    Case("a place in a topology without a name", "slurm.node-topology", "all", yaml=GOOD_YAML, node="Topology=:b"),
    Case("a partition with an empty topology", "slurm.topology-unknown", "all",
         yaml=GOOD_YAML, partition='PartitionName=a Nodes=ALL Topology=""'),
    Case("a default of all partitions", "slurm.topology-unknown", "all", yaml=GOOD_YAML,
         partition="PartitionName=DEFAULT Topology=zz\nPartitionName=a Nodes=ALL"),
)  # fmt: skip

_RING = "- topology: a\n  ring:\n    rings:\n"


def torus(dims: str, nodes: str, more: str = "") -> str:
    return f"- topology: t\n  torus3d:\n    toruses:\n      - {{name: pod, dims: {dims}, {nodes}{more}}}\n"


_CUBE = "{x: 2, y: 2, z: 2}"

#: Rings and tori came with 26.05: before, a topology of them has no kind.
RINGS_MORE = (
    Case("rings", "", "<26.05", yaml=f"{_RING}      - {{ring: r1, nodes: 'n[0-3]'}}\n      - {{ring: r2, nodes: 'n[4-7]'}}\n"),
    Case("a ring twice", "ring.duplicate", "all",
         yaml=f"{_RING}      - {{ring: r, nodes: 'n[0-3]'}}\n      - {{ring: r, nodes: 'n[4-7]'}}\n"),
    Case("a ring without a name", "yaml.shape", "all", yaml=f"{_RING}      - {{nodes: 'n[0-3]'}}\n"),
    Case("no rings", "conf.empty", "all", yaml="- topology: a\n  ring: {rings: []}\n"),
    Case("one word for rings", "yaml.shape", "all", yaml="- topology: a\n  ring: {rings: words}\n"),
    Case("a ring of unknown nodes", "ring.unknown-node", "<26.05", yaml=f"{_RING}      - {{ring: r, nodes: 'n[0-7],z[0-30]'}}\n"),
    Case("a node in two rings", "ring.node-twice", "<26.05",
         yaml=f"{_RING}      - {{ring: r1, nodes: 'n[0-4]'}}\n      - {{ring: r2, nodes: 'n[4-7]'}}\n"),
    Case("a torus", "", "<26.05", yaml=torus(_CUBE, "nodes: 'n[0-7]'", f", placements: [{{dims: {_CUBE}}}]")),
    Case("a torus with too few nodes", "torus.refused", "all", yaml=torus("{x: 4, y: 4, z: 2}", "nodes: 'n[0-7]'")),
    Case("a torus without dimensions", "torus.refused", "all", yaml=torus("{x: 8, y: 1}", "nodes: 'n[0-7]'")),
    Case("a torus with nodes and regions", "torus.refused", "all",
         yaml=torus(_CUBE, "nodes: 'n[0-7]'", f", regions: [{{dims: {_CUBE}, nodes: 'n[0-7]'}}]")),
    Case("a torus of regions", "", "<26.05",
         yaml=torus(_CUBE, "regions: [{dims: {x: 2, y: 2, z: 1}, nodes: 'n[0-3]'}, "
                    "{anchor: {z: 1}, dims: {x: 2, y: 2, z: 1}, nodes: 'n[4-7]'}]")),
    Case("regions one upon the other", "torus.refused", "all",
         yaml=torus(_CUBE, "regions: [{dims: {x: 2, y: 2, z: 1}, nodes: 'n[0-3]'}, {dims: {x: 2, y: 2, z: 1}, nodes: 'n[4-7]'}]")),
    Case("a region outside", "torus.refused", "all",
         yaml=torus(_CUBE, "regions: [{anchor: {x: 1}, dims: {x: 2, y: 2, z: 1}, nodes: 'n[0-3]'}]")),
    Case("a region with too few nodes", "torus.refused", "all", yaml=torus(_CUBE, "regions: [{dims: {x: 2, y: 2, z: 1}, nodes: n0}]")),
    Case("a placement that is too large", "torus.refused", "all",
         yaml=torus(_CUBE, "nodes: 'n[0-7]'", ", placements: [{dims: {x: 3, y: 1, z: 1}}]")),
    Case("anchors that are too far apart", "torus.refused", "all",
         yaml=torus(_CUBE, "nodes: 'n[0-7]'", ", placements: [{dims: {x: 1, y: 1, z: 1}, anchor_spacing: {x: 3}}]")),
    Case("an anchor outside", "torus.refused", "all",
         yaml=torus(_CUBE, "nodes: 'n[0-7]'", ", placements: [{dims: {x: 1, y: 1, z: 1}, anchor_seed: {y: 2}}]")),
    Case("one word for dimensions", "yaml.shape", "all", yaml=torus("8", "nodes: 'n[0-7]'")),
    Case("two tori of the same nodes", "torus.refused", "all",
         yaml=torus(_CUBE, "nodes: 'n[0-7]'") + f"      - {{name: other, dims: {_CUBE}, nodes: 'n[0-7]'}}\n"),
    Case("text behind the end of a document", "", "", yaml="  flat: true\n  topology: b\n- words\n"),
    Case("a list twice", "yaml.shape", "all", yaml=block_yaml("[4]", _BLOCKS[0]) + f"    blocks:\n      - {_BLOCKS[1]}\n"),
    Case("a list, and then a mapping", "yaml.key-twice", "", yaml=block_yaml("[4]", _BLOCKS[0]) + f"    blocks: {_BLOCKS[1]}\n"),
    Case("a key twice", "yaml.key-twice", "", yaml="- topology: a\n  topology: b\n  flat: true\n"),
)  # fmt: skip

SLURM_MORE = (
    Case("a plugin in capitals", "slurm.plugin", "all", _ONE, slurm="TopologyPlugin=topology/Tree"),
    Case("a plugin of no name", "slurm.plugin", "all", _ONE, slurm='TopologyPlugin=""'),
    Case("a folder alone", "slurm.plugin", "all", _ONE, slurm="TopologyPlugin=topology/"),
    Case("rings in Slurm's own syntax", "", "<26.05", "RingName=r Nodes=n[0-7]\n", slurm="TopologyPlugin=topology/ring"),
    Case("a ring twice", "ring.duplicate", "all", "RingName=r Nodes=n[0-3]\nRingName=r Nodes=n[4-7]\n",
         slurm="TopologyPlugin=topology/ring", since=(26, 5)),
    Case("blocks that nothing reads", "slurm.plugin-unset", "", _TWO_BLOCKS, slurm="TopologyPlugin=topology/none"),
    Case("words that nothing reads", "slurm.plugin-unset", "", "words\n", slurm=""),
    Case("a Cray's torus", "slurm.plugin", "all", _ONE, slurm="TopologyPlugin=topology/3d_torus"),
    Case("rings of switches", "conf.unknown-key", "all", _ONE, slurm="TopologyPlugin=topology/ring", since=(26, 5)),
    Case("a weight in words", "slurm.number", "all", _ONE, node="Weight=heavy"),
    Case("a width in words", "slurm.number", "all", _ONE, slurm=f"{TREE}\nTreeWidth=wide"),
    Case("a width of 65,536", "slurm.number", "all", _ONE, slurm=f"{TREE}\nTreeWidth=65536"),
    Case("whole blocks for a job, by the old key", "slurm.partition-key", "<24.05",
         _ONE, partition="PartitionName=a Nodes=ALL ExclusiveTopo=YES"),
    Case("whole blocks for a job, by the new key", "slurm.partition-key", "<26.05",
         _ONE, partition="PartitionName=a Nodes=ALL Exclusive=TOPO"),
)  # fmt: skip
