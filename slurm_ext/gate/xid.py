"""NVIDIA's own advice for each Xid, the codes of NVLink 5 by unit and severity, and the driver's recovery actions. Tables.

Source: NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of 2025-10-29.
Checked on 2026-08-22. A code that is in no row is unknown, not harmless.
"""

from __future__ import annotations

from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

CHECKED_ON = "2026-08-22"


class Advice(NamedTuple):
    """What an Xid means for the next job: verdict, action and the catalogue's words."""

    verdict: str
    action: str
    meaning: str


def _rows(verdict: str, action: str, meaning: str, codes: tuple[int, ...]) -> dict[int, Advice]:
    return {code: Advice(verdict, action, meaning) for code in codes}


XIDS: dict[int, Advice] = {
    # "Unused" with contact support: worth a word with support if it repeats, no statement about the hardware.
    **_rows(WARN, "warn", "unused code, contact support", (*range(1, 8), 9, 10, 12, *range(15, 25))),
    **_rows(WARN, "warn", "unused code, contact support", (*range(26, 31), *range(33, 37), 42, 47, *range(49, 54))),
    **_rows(WARN, "warn", "unused code, contact support", (*range(55, 60), 61, 65, 73, 81, 87, 90, 91)),
    **_rows(WARN, "warn", "unused code, contact support", (*range(111, 119), *range(122, 126), 138)),
    14: Advice(WARN, "warn", "unused code, ignore, contact support if it repeats"),
    142: Advice(WARN, "warn", "video encoder error, contact support"),
    # Restart the application: a program's own fault as a rule, never a reason to take the node away.
    **_rows(PASS, "none", "restart the application", (8, 11, 25, *range(39, 42), 60, 68, 69, *range(70, 73))),
    **_rows(PASS, "none", "restart the application", (75, 76, 77, 80, *range(82, 87), 88, 89, *range(96, 106))),
    **_rows(PASS, "none", "restart the application", (*range(126, 136), 139)),
    13: Advice(PASS, "none", "graphics engine exception: restart the application"),
    31: Advice(PASS, "none", "GPU memory page fault: restart the application"),
    32: Advice(PASS, "none", "invalid push buffer stream: restart the application"),
    94: Advice(WARN, "warn", "contained memory error: restart the application"),
    # Ignore.
    **_rows(PASS, "none", "ignore", (37, 38, 44, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 160, 161)),
    43: Advice(PASS, "none", "GPU stopped processing a channel: ignore"),
    63: Advice(PASS, "none", "row remap recorded: ignore, correct until the next reset"),
    157: Advice(WARN, "warn", "resource retirement failure: ignore, contact support"),
    # Something has to be done with the GPU or the node.
    46: Advice(FAIL, "reset-gpu", "GPU stopped processing: reset the GPU"),
    48: Advice(FAIL, "reset-gpu", "double-bit ECC error: reset the GPU, then look at SRAM threshold and remap"),
    54: Advice(FAIL, "drain", "auxiliary power not connected: check mechanicals"),
    62: Advice(FAIL, "reset-gpu", "internal micro-controller halt: reset the GPU"),
    64: Advice(FAIL, "reset-gpu", "row remap failed: reset the GPU, contact support"),
    74: Advice(FAIL, "reset-gpu", "NVLink error: reset, contact support if it comes back"),
    78: Advice(WARN, "warn", "vGPU start error: update software"),
    79: Advice(FAIL, "reboot", "GPU has fallen off the bus: restart the node"),
    95: Advice(FAIL, "reset-gpu", "uncontained memory error: reset the GPU"),
    109: Advice(FAIL, "reset-gpu", "context switch timeout: reset the GPU"),
    110: Advice(FAIL, "reset-gpu", "security fault: reset the GPU"),
    119: Advice(FAIL, "reset-gpu", "GSP RPC timeout: reset the GPU"),
    120: Advice(FAIL, "reset-gpu", "GSP error: reset the GPU"),
    136: Advice(FAIL, "reset-gpu", "link training failed: reset the GPU"),
    140: Advice(FAIL, "reset-gpu", "unrecovered ECC error: reset the GPU"),
    143: Advice(FAIL, "reset-gpu", "GPU initialization error: reset the GPU"),
    151: Advice(FAIL, "reboot", "key rotation error: restart the machine"),
    155: Advice(FAIL, "reset-gpu", "NVLink, defined by software: reset the GPU"),
    156: Advice(FAIL, "reset-gpu", "resource retirement: reset the GPU"),
    158: Advice(FAIL, "reset-gpu", "GPU fatal timeout: reset the GPU"),
    # In the catalogue, without an action.
    **_rows(UNKNOWN, "warn", "the catalogue gives no action", (159, *range(162, 171))),
    **_rows(PASS, "none", "details to an Xid 48", (171, 172)),
}

#: These follow another Xid and are judged with it, see rules.
PREEMPTIVE_REMOVAL = 45
RECOVERY_CHANGED = 154
NVLINK5 = range(144, 151)

#: 64 with this text: no spare rows are left, which the row-remap policy names as a return criterion.
NO_SPARE_ROWS = "all reserved rows"

#: The units of NVLink 5 that the catalogue lists, and for some the non-fatal status bits for which Xid 154 decides.
NVLINK5_UNITS: dict[str, int] = {
    "SAW_MVB": 0,
    "RLW_CTRL": 0,
    "RLW_REMAP": 0x3F,
    "RLW_RSPCOL": 0,
    "RLW_RXPIPE": 0,
    "RLW_SRC_TRACK": 0x0C,
    "RLW_TAGSTATE": 0,
    "TLW_CTRL": 0,
    "TLW_RX": 0,
    "TLW_RX_PIPE0": 0,
    "TLW_RX_PIPE1": 0,
    "TLW_TX": 0,
    "TLW_TX_PIPE0": 0,
    "TLW_TX_PIPE1": 0,
    "TREX": 0,
    "NVLPW_CTRL": 0,
    "NVLPW": 0,
    "NETIR": 0,
    "NETIR_INT": 0,
    "NETIR_BER_EVENT": 0,
    "NETIR_LINK_EVT": 0,
    "NETIR_LINK_DOWN": 0,
    "NETIR_MFDE_EVENT": 0,
    "MSE_WATCHDOG": 0,
}

#: Xid 149, NETIR_LINK_EVT: sub-codes (bits 20 to 25 of the first word, in the layouts before and after R575 alike) whose
#: immediate action is "ignore" though the line says Fatal: taken down by software or its user, and by the host.
LINK_DOWN_IGNORED = frozenset((0b100110, 0b101000))

#: Recovery action by number (NVML field 230, Xid 154) and by nvidia-smi's word. Source: NVML's nvml.h; 5 (R590), 6 and 7
#: (R615) as in cuda.bindings.nvml.DeviceGpuRecoveryAction. Newer drivers word number 2 as "OS Reboot": the number, not the
#: words, tells the action.
RECOVERY_NUMBERS: dict[int, str] = {
    **{0: "none", 1: "reset-gpu", 2: "reboot", 3: "drain", 4: "reset-gpu", 5: "drain", 6: "reset-gpu", 7: "reboot"}
}

#: What loading the driver anew does as well.
RESETS = frozenset((1, 4, 6))

RECOVERY_WORDS: dict[str, str] = {
    "none": "none",
    "reset": "reset-gpu",
    "gpu reset": "reset-gpu",
    "reboot": "reboot",
    "node reboot": "reboot",
    "os reboot": "reboot",
    "drain p2p": "drain",
    "drain and reset": "reset-gpu",
    "recover imex domain": "drain",
    "bus reset": "reset-gpu",
    "system reboot": "reboot",
}
