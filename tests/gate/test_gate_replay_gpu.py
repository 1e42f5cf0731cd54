"""Captures of nvidia-smi in the forms that only captures have: tables, lists, answers without a header, no answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.captured import Case
from slurm_ext.gate import replay_gpu
from slurm_ext.gate.model import conclude
from slurm_ext.verdict import VERDICTS

NOTHING = ("pass", [])
CUT = ("unknown", [("node", "none")])


def told(context=None, kind="p5.48xlarge", **texts):
    verdict = conclude(replay_gpu.judge(Case("/c", "gpu", kind, texts, context or {})))
    return verdict.verdict, sorted((finding.target, finding.action) for finding in verdict.findings)


HEAD = """Fri Jul  3 22:11:09 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""
TAIL = "|  No running processes found                                                             |\n"


def table(count=8, *, persistence="On", ecc="0", mig="Disabled", second="| N/A   52C    P0            628W /  700W |"):
    """Return a table in which the last GPU has these values."""
    rows = ""
    for number in range(count):
        odd = number == count - 1
        rows += f"|   {number}  NVIDIA H100 80GB HBM3   {persistence if odd else 'On':>10}  |   00000000:{number + 16:02X}:00.0 Off |"
        rows += f"{ecc if odd else '0':>21} |\n"
        rows += second if odd else "| N/A   52C    P0            628W /  700W |"
        rows += "   32362MiB / 143771MiB |    100%      Default |\n"
        rows += (
            f"|                                         |                        |{mig if odd else 'Disabled':>21} |\n"
        )
        rows += "+-----------------------------------------+------------------------+----------------------+\n"
    return HEAD + rows + "| Processes:\n" + TAIL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (table(), NOTHING),
        (table(7), ("fail", [("node", "reboot")])),
        (table(ecc="12"), ("fail", [("gpu:7", "reset-gpu")])),
        (table(ecc="Off"), ("warn", [("gpu:7", "warn")])),
        (table(persistence="Off"), ("warn", [("gpu:7", "warn")])),
        (table(mig="Enabled", ecc="On"), ("warn", [("gpu:7", "warn")])),
        (table(second="|ERR!  ERR!   ERR!           ERR! / ERR! |"), ("unknown", [("gpu:7", "drain")])),
        (table()[:1200], CUT),
        (HEAD, CUT),
        ("", CUT),
    ],
)
def test_the_default_table(text, expected):
    assert told(smi_table=text) == expected
    if text:
        assert told({"command": "nvidia-smi", "exit_code": 0}, stdout=text) == expected


LIST = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{n}-0000-0000-0000-000000000000)\n" for n in range(8))


def test_the_list():
    listed = {"command": "nvidia-smi -L", "exit_code": 0}
    assert told(listed, stdout=LIST) == NOTHING
    assert told(listed, stdout=LIST.partition("GPU 7")[0]) == ("fail", [("node", "reboot")])
    mig = "  MIG 1g.10gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)\n"
    assert told(listed, stdout=LIST + mig) == ("warn", [("gpu:7", "warn")])


ASKED = "index,pci.bus_id,persistence_mode,ecc.errors.uncorrected.volatile.total"
ROWS = "".join(f"{n}, 00000000:{n + 16:02X}:00.0, Enabled, {7 if n == 3 else 0}\n" for n in range(8))


@pytest.mark.parametrize("form", ["csv,noheader", "csv,noheader,nounits"])
@pytest.mark.parametrize("role", ["stdout", "smi_csv"])
def test_an_answer_without_a_header_has_the_columns_of_its_command(role, form):
    context = {"command": f"nvidia-smi --query-gpu={ASKED} --format={form}", "exit_code": 0}
    assert told(context, **{role: ROWS}) == ("fail", [("gpu:3", "reset-gpu")])
    assert told({**context, "command": "nvidia-smi --query-gpu=index --format=csv"}, **{role: ROWS})[0] == "unknown"


COLUMNS = "index, pci.bus_id, persistence_mode, {}\n"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("clocks_event_reasons.hw_thermal_slowdown", "Active", ("warn", [("gpu:0", "warn")])),
        ("clocks_throttle_reasons.hw_power_brake_slowdown", "Active", ("warn", [("gpu:0", "warn")])),
        ("clocks_event_reasons.hw_slowdown", "Active", NOTHING),
        ("clocks_event_reasons.sw_thermal_slowdown", "Active", ("warn", [("gpu:0", "warn")])),
        ("ecc.mode.current", "Disabled", ("warn", [("gpu:0", "warn")])),
        ("reset_status.reset_required", "Yes", ("fail", [("gpu:0", "reset-gpu")])),
        ("reset_status.drain_and_reset_recommended", "No", NOTHING),
        ("fabric.health.summary", "Unhealthy", ("fail", [("gpu:0", "drain")])),
        ("fabric.health.summary", "Limited Capacity", ("warn", [("gpu:0", "warn")])),
        ("fabric.health.summary", "N/A", NOTHING),
        ("fabric.health.summary", "Tepid", ("unknown", [("gpu:0", "drain")])),
    ],
)
def test_flags_of_newer_and_older_drivers(name, value, expected):
    rows = "".join(f"{n}, 00000000:{n + 16:02X}:00.0, Enabled, {value if n == 0 else 'N/A'}\n" for n in range(8))
    assert told(smi_csv=COLUMNS.format(name) + rows) == expected


XML = """<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:53:00.0"><minor_number>0</minor_number>{}</gpu>
<gpu id="00000000:64:00.0"><minor_number>1</minor_number>{}</gpu></nvidia_smi_log>
"""
LINK = (
    "<performance_state>P0</performance_state><pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width>"
    "<current_link_width>{}</current_link_width></link_widths></pci_gpu_link_info></pci>"
)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            "<ecc_errors><channel_repair_pending>Yes</channel_repair_pending></ecc_errors>",
            ("warn", [("gpu:0", "reset-gpu")]),
        ),
        ("<ecc_errors><tpc_repair_pending>Yes</tpc_repair_pending></ecc_errors>", ("warn", [("gpu:0", "reset-gpu")])),
        (
            "<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>",
            ("fail", [("gpu:0", "reset-gpu")]),
        ),
        (
            "<gpu_reset_status><reset_required>No</reset_required>"
            "<drain_and_reset_recommended>Yes</drain_and_reset_recommended></gpu_reset_status>",
            ("fail", [("gpu:0", "reset-gpu")]),
        ),
        (
            "<clocks_throttle_reasons><clocks_throttle_reason_hw_thermal_slowdown>Active"
            "</clocks_throttle_reason_hw_thermal_slowdown></clocks_throttle_reasons>",
            ("warn", [("gpu:0", "warn")]),
        ),
        (
            "<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>"
            "</clocks_event_reasons>",
            ("pass", [("node", "none")]),
        ),
        ("<fabric><health><bandwidth>Degraded</bandwidth></health></fabric>", ("warn", [("gpu:0", "warn")])),
        ("<fabric><health><route_unhealthy>True</route_unhealthy></health></fabric>", ("fail", [("gpu:0", "drain")])),
        (
            "<fabric><health><bandwidth>Full</bandwidth><route_unhealthy>False</route_unhealthy></health></fabric>",
            NOTHING,
        ),
    ],
)
def test_fields_of_the_xml(field, expected):
    assert told(kind="", smi_q_xml=XML.format(field, "")) == expected


def test_a_link_is_narrow_beside_wider_ones_only():
    assert told(kind="", smi_q_xml=XML.format(LINK.format("8x"), LINK.format("16x"))) == ("warn", [("gpu:0", "warn")])
    assert told(kind="", smi_q_xml=XML.format(LINK.format("8x"), LINK.format("8x"))) == NOTHING


GONE = {"command": "nvidia-smi", "exit_code": 127}
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


def test_a_type_without_gpus_needs_no_tool_and_no_driver():
    assert told(GONE, "c5.18xlarge", stdout="", stderr="bash: nvidia-smi: command not found") == (
        "pass",
        [("node", "none")],
    )
    assert told({"exit_code": 9}, "m6i.large", stdout=NO_DRIVER) == ("pass", [("node", "none")])
    assert told(GONE, "p5.48xlarge", stdout="", stderr="bash: nvidia-smi: command not found") == CUT
    assert told(GONE, "p9.48xlarge", stdout="", stderr="bash: nvidia-smi: command not found") == CUT
    assert told({"exit_code": 9}, "p5.48xlarge", stdout=NO_DRIVER) == ("fail", [("node", "drain")])


NVLINK = "GPU {}: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"


def test_links_by_the_name_of_the_gpu():
    none = "NVML: Unable to retrieve NVLink information as all links are inactive\n"
    assert told(kind="", nvlink=NVLINK.format(6) + none) == ("fail", [("gpu:6", "reset-gpu")])
    assert told(kind="", nvlink="GPU 0: NVIDIA GeForce RTX 2080 SUPER (UUID: GPU-1)\n" + none) == NOTHING
    assert told(kind="", nvlink="GPU 0: NVIDIA L40S (UUID: GPU-1)\nDevice does not have or support Nvlink\n") == NOTHING
    up = "".join(f"\t Link {n}: 25 GB/s\n" for n in range(12))
    assert told(kind="", nvlink=NVLINK.format(7) + up) == NOTHING
    assert told(kind="", nvlink=NVLINK.format(7) + up.replace("3: 25 GB/s", "3: <inactive>")) == (
        "fail",
        [("gpu:7", "reset-gpu")],
    )
    errors = "\t Link 3: Replay Errors: 12\n\t Link 4: Replay Errors: 0\n"
    assert told(kind="", nvlink=NVLINK.format(7) + errors) == ("warn", [("gpu:7", "warn")])


def topology(*lost, count=8, word="NV12"):
    rows = ["\t" + "\t".join(f"GPU{n}" for n in range(count)) + "\tCPU Affinity\tNUMA Affinity"]
    for one in range(count):
        cells = [" X " if one == other else "SYS" if {one, other} & {*lost} else word for other in range(count)]
        rows.append("\t".join([f"GPU{one}", *cells, "0-23,48-71", "0"]))
    return "\n".join(rows) + "\n"


def test_only_the_gpu_that_lost_its_links_is_named():
    assert told(kind="p4d.24xlarge", topo=topology()) == NOTHING
    assert told(kind="p4d.24xlarge", topo=topology(3)) == ("fail", [("gpu:3", "reset-gpu")])
    assert told(kind="", topo=topology(3)) == ("fail", [("gpu:3", "reset-gpu")])
    assert told(kind="", topo=topology()) == told(kind="g5.48xlarge", topo=topology(word="PHB")) == NOTHING
    both = ("fail", [("gpu:0", "reset-gpu"), ("gpu:1", "reset-gpu")])
    pair = topology().replace("GPU0\t X \tNV12", "GPU0\t X \tNV8").replace("GPU1\tNV12", "GPU1\tNV8")
    assert told(kind="p4d.24xlarge", topo=pair) == both
    assert told(kind="p5.48xlarge", topo=topology())[0] == "fail"  # twelve links, and the type has eighteen


@given(st.text(), st.sampled_from(["stdout", "smi_table", "smi_q_xml", "smi_csv", "nvlink", "topo", "smi_q_text"]))
def test_whatever_was_printed_it_is_judged(text, role):
    assert told(**{role: text})[0] in VERDICTS


def test_types_outside_the_training_catalogue_are_counted_too():
    rows = "".join(f"{n}, 00000000:{n + 16:02X}:00.0, Enabled, 0\n" for n in range(7))
    assert told(kind="g5.48xlarge", smi_csv=f"{ASKED}\n{rows}") == ("fail", [("node", "reboot")])
    assert told(kind="g5.xlarge", smi_csv=f"{ASKED}\n{rows[:40].splitlines()[0]}\n") == NOTHING
    assert told({"exit_code": 9}, "g6e.xlarge", stdout=NO_DRIVER) == ("fail", [("node", "drain")])
    assert told({"exit_code": 9}, "trn1.32xlarge", stdout=NO_DRIVER) == ("pass", [("node", "none")])


READING = "timestamp, index, uuid, pci.bus_id, utilization.gpu, pcie.link.gen.current, pcie.link.gen.max, {}\n"
BRAKE = "clocks_event_reasons_counters.hw_power_brake_slowdown"


def reading(second, *, brake=0, busy="0 %", generation=5, extra="0", name=BRAKE):
    rows = "".join(
        f"2026/07/14 08:12:{second:02d}.500, {n}, GPU-0, 00000000:{n + 16:02X}:00.0, {busy}, {generation if n == 3 else 5}, 5, "
        f"{brake if n == 3 else extra}\n"
        for n in range(8)
    )
    return READING.format(name) + rows


def test_two_readings_tell_what_one_cannot_and_the_later_one_is_read_too():
    held = ("fail", [("gpu:3", "drain")])
    assert told(smi_csv=reading(0), smi_csv_second=reading(40, brake=40_000_000)) == held
    assert told(smi_csv=reading(0), smi_csv_loaded=reading(40, brake=40_000_000)) == held
    assert told(smi_csv=reading(0), smi_csv_second=reading(40)) == NOTHING
    assert told(smi_csv=reading(0), smi_csv_second=reading(40, brake=400_000)) == ("warn", [("gpu:3", "warn")])
    errors = "ecc.errors.uncorrected.volatile.total"
    later = reading(40, name=errors, brake=2)
    assert told(smi_csv=reading(0, name=errors), smi_csv_second=later) == ("fail", [("gpu:3", "reset-gpu")])


def test_a_links_generation_counts_at_work_only():
    slow = ("warn", [("gpu:3", "warn")])
    assert told(smi_csv=reading(0, generation=1)) == NOTHING
    assert told(smi_csv=reading(0, generation=1, busy="100 %")) == slow
    assert told(smi_csv=reading(0, generation=1), smi_csv_loaded=reading(40, generation=1)) == slow
    assert told(smi_csv=reading(0, generation=1), smi_csv_loaded=reading(40)) == NOTHING


DOMAIN = "index, pci.bus_id, fabric.state, fabric.status, fabric.clusterUuid\n"
ZEROS, RACK = "00000000-0000-0000-0000-000000000000", "7f3a91c2-0000-0000-0000-000000000001"


def domain(*uuids, state="Completed"):
    return DOMAIN + "".join(f"{n}, 0000000{n}:01:00.0, {state}, Success, {uuid}\n" for n, uuid in enumerate(uuids))


def test_zeros_for_a_domain_are_a_fault_in_a_rack_only():
    rack = "p6e-gb200.36xlarge"
    assert told(kind=rack, smi_csv=domain(*[RACK] * 4)) == NOTHING
    assert told(kind=rack, smi_csv=domain(*[ZEROS] * 4)) == ("fail", [("node", "drain")])
    assert told(kind=rack, smi_csv=domain(RACK, RACK, ZEROS, RACK)) == ("fail", [("gpu:2", "drain")])
    assert told(kind=rack, smi_csv=domain(*["N/A"] * 4)) == NOTHING
    assert told(kind="p5.48xlarge", smi_csv=domain(*[ZEROS] * 8)) == NOTHING
    one = "<fabric><state>Completed</state><status>Success</status><clusterUuid>{}</clusterUuid></fabric>"
    both = XML.format(one.format(ZEROS), one.format(ZEROS))
    assert ("node", "drain") in told(kind=rack, smi_q_xml=both)[1]
    assert told(kind="", smi_q_xml=both) == NOTHING


def test_every_gpu_that_waits_for_the_fabric_is_named():
    late = {"boot_time": "2026-07-14T05:00:00Z", "now": "2026-07-14T08:00:00Z"}
    rows = domain(*[ZEROS] * 8).splitlines(True)
    rows[3], rows[6] = (row.replace("Completed, Success", "In Progress, N/A") for row in (rows[3], rows[6]))
    assert told(late, smi_csv="".join(rows)) == ("fail", [("gpu:2", "drain"), ("gpu:5", "drain")])


def test_a_copied_answer_may_lack_the_end_of_its_last_line():
    whole = reading(0)
    assert told(smi_csv=whole) == told(smi_csv=whole.rstrip()) == told(smi_csv=whole.rstrip() + "  ") == NOTHING
    assert told({"timed_out": True}, smi_csv=whole.rstrip())[0] == "unknown"
    assert told(smi_csv=whole[: whole.rindex(",")])[0] == "unknown"
