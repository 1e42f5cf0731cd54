"""EFA devices as tests make them up: sysfs trees, and what fi_info and rdma print of them."""

from __future__ import annotations

import fabric_answers

from slurm_ext.aws import efa_types
from slurm_ext.gate import replay_efa

P4D = efa_types.efa_names("p4d.24xlarge")
P5 = efa_types.efa_names("p5.48xlarge")
P5EN = efa_types.efa_names("p5en.48xlarge")
# Groups of two at a stride of 17: an order that no table has, as another generation of a host may number its buses.
B300_OTHER = tuple(f"rdmap{88 + 17 * group + place}s0" for group in range(8) for place in range(2))

DEVICE_COUNTERS = (
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "create_qp_err",
)
PORT_COUNTERS = (
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_bytes",
)
PORT_COUNTERS += ("retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events")


def answer(roles, *, instance_type="", context=None):
    return fabric_answers.answer(replay_efa.judge, "efa", roles, instance_type=instance_type, context=context)


def tree(names, *, nodes=True, module="2.17.3g\n", **counters):
    """Return a sysfs of EFA devices; a counter is named `device__counter`, or `counter` for all devices."""
    found = {"sys/module/efa/version": module} if module else {}
    for at, name in enumerate(names):
        base = f"sys/class/infiniband/{name}"
        found |= {f"{base}/device/vendor": "0x1d0f\n", f"{base}/device/device": "0xefa2\n"}
        found |= {f"{base}/node_guid": "0000:0000:0000:0000\n", f"{base}/ports/1/state": "4: ACTIVE\n"}
        for folder, all_ in (("ports/1/hw_counters", PORT_COUNTERS), ("hw_counters", DEVICE_COUNTERS)):
            for counter in all_:
                value = counters.get(f"{name}__{counter}", counters.get(counter, 0))
                found[f"{base}/{folder}/{counter}"] = value if isinstance(value, dict) else f"{value}\n"
        found[f"sys/class/infiniband_verbs/uverbs{at}/ibdev"] = f"{name}\n"
        if nodes is True or (nodes and name in nodes):
            found[f"dev/infiniband/uverbs{at}"] = ""
    if not nodes:
        found["dev/infiniband/"] = ""
    return found


def fi_info(names, *, provider="efa"):
    blocks = []
    for name in names:
        for fabric, way, kind in (("efa-direct", "rdm", "RDM"), ("efa", "rdm", "RDM"), ("efa", "dgrm", "DGRAM")):
            blocks.append(
                f"provider: {provider}\n    fabric: {fabric}\n    domain: {name}-{way}\n    version: 201.0\n"
                f"    type: FI_EP_{kind}\n    protocol: FI_PROTO_EFA\n"
            )
    return "".join(blocks)


def links(names, **states):
    return "".join(f"link {n}/1 state {states.get(n, 'ACTIVE physical_state LINK_UP')} \n" for n in names)


def without(names, *gone):
    return tuple(name for name in names if name not in gone)


def lacking(*names, action="replace"):
    return "fail", {(f"efa:{name}", action) for name in names}


NODE_REPLACE, NODE_DRAIN = ("fail", {("node", "replace")}), ("fail", {("node", "drain")})
NODE_WARN, NODE_NONE = ("unknown", {("node", "warn")}), ("unknown", {("node", "none")})
