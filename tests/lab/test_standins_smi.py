"""nvidia-smi and NVML of the lab: one state behind both, the words and exit codes of the real ones."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from standins_support import write_node

from slurm_ext.lab import standins


def smi(libraries: Path, hardware: Path | None, *arguments: str) -> tuple[int, str, str]:
    env = {} if hardware is None else {"FMSLURM_LAB_HARDWARE": str(hardware)}
    argv = [str(libraries / "bin/nvidia-smi"), *arguments]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_list_and_table_say_that_nothing_is_real(libraries: Path, tmp_path: Path) -> None:
    hardware = write_node(tmp_path, "n0", gpu_type="h200", gpu__0__uuid="GPU-1")
    code, out, _ = smi(libraries, hardware, "-L")
    assert code == 0
    assert out.splitlines()[0] == "GPU 0: NVIDIA H200 (UUID: GPU-1)"
    assert len(out.splitlines()) == 8
    code, out, _ = smi(libraries, hardware)
    assert code == 0
    assert "SIMULATED" in out


def test_query_forms(libraries: Path, tmp_path: Path) -> None:
    hardware = write_node(
        tmp_path, "n0", gpus=2, gpu__1__ecc_uncorrected=3, gpu__1__remap_pending=1, gpu__1__pcie_width=8,
        gpu__1__event_reasons="0x88", gpu__0__mig=1, driver="590.48.01",
    )  # fmt: skip
    fields = "index,pci.bus_id,memory.total,ecc.errors.uncorrected.volatile.total,remapped_rows.pending,pcie.link.width.current"
    code, out, _ = smi(libraries, hardware, f"--query-gpu={fields}", "--format=csv")
    assert code == 0
    assert out.splitlines() == [
        fields.replace(",", ", ").replace("memory.total", "memory.total [MiB]"),
        "0, 00000000:53:00.0, 81559 MiB, 0, [N/A], 16",
        "1, 00000000:64:00.0, 81559 MiB, 3, Yes, 8",
    ]
    code, out, _ = smi(
        libraries, hardware, "-i", "1", "--query-gpu=memory.total,serial", "--format=csv,noheader,nounits"
    )
    assert code == 0
    assert out.startswith("81559, 16")
    code, out, _ = smi(
        libraries, hardware, "--query-gpu=clocks_event_reasons.active,clocks_event_reasons.hw_power_brake_slowdown",
        "--format=csv,noheader",
    )  # fmt: skip
    assert out.splitlines()[1] == "0x0000000000000088, Active"


def test_what_a_driver_does_not_know(libraries: Path, tmp_path: Path) -> None:
    old = write_node(tmp_path, "n0", driver="550.90.07", gpu__0__remap_failed=1)
    code, out, _ = smi(libraries, old, "--query-gpu=index,gpu_recovery_action", "--format=csv")
    assert (code, out.strip()) == (2, 'Field "gpu_recovery_action" is not a valid field to query.')
    assert smi(libraries, old, "--query-gpu=remapped_rows.failure", "--format=csv,noheader", "-i", "0")[1] == "1\n"
    assert smi(libraries, old, "--query-gpu=index")[0] == 2
    assert smi(libraries, old, "-q", "-x")[0] == 1


def test_lost_gpu(libraries: Path, tmp_path: Path) -> None:
    hardware = write_node(tmp_path, "n0", gpu__0__lost=1)
    words = (
        "Unable to determine the device handle for GPU0000:53:00.0: GPU is lost.  Reboot the system to recover this GPU"
    )
    code, out, err = smi(libraries, hardware, "--query-gpu=index", "--format=csv")
    assert (code, out, err.strip()) == (15, "", words)
    code, out, err = smi(libraries, hardware, "-L")
    assert (code, len(out.splitlines()), err.strip()) == (15, 7, words)
    assert smi(libraries, hardware, "--query-gpu=index", "--format=csv,noheader", "-i", "3")[:2] == (0, "3\n")


def test_driver_faults(libraries: Path, tmp_path: Path) -> None:
    code, out, _ = smi(libraries, None, "-L")
    assert code == 9
    assert "couldn't communicate with the NVIDIA driver" in out
    assert smi(libraries, write_node(tmp_path, "n0", driver__missing=1), "-L")[0] == 9
    code, out, _ = smi(libraries, write_node(tmp_path, "n0", driver__init_error=18), "-L")
    assert code == 18
    assert out.startswith("Failed to initialize NVML: Driver/library version mismatch")
    assert smi(libraries, write_node(tmp_path, "n0", gpus=0), "-L") == (6, "No devices were found\n", "")
    assert len(smi(libraries, write_node(tmp_path, "n0", gpu__2__absent=1), "-L")[1].splitlines()) == 7


def test_a_wedged_driver_gives_no_answer(libraries: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [str(libraries / "bin/nvidia-smi")],
            env={"FMSLURM_LAB_HARDWARE": str(write_node(tmp_path, "n0", smi__hang=1))},
            timeout=0.3,
        )


def test_found_by_its_own_place_below_a_root(libraries: Path, tmp_path: Path) -> None:
    """The gate starts <root>/usr/bin/nvidia-smi with a clean environment: the node is the one of that root."""
    write_node(tmp_path, "n0", gpus=3)
    folder = tmp_path / "n0/root/usr/bin"
    folder.mkdir(parents=True)
    (folder / "nvidia-smi").symlink_to(libraries / "bin/nvidia-smi")
    done = subprocess.run([str(folder / "nvidia-smi"), "-L"], env={}, capture_output=True, text=True, timeout=120)
    assert len(done.stdout.splitlines()) == 3


def test_processes_with_a_context_are_listed_until_they_end(libraries: Path, tmp_path: Path) -> None:
    hardware = write_node(tmp_path, "n0")
    other = write_node(tmp_path, "n1")
    text = """
        import ctypes, sys
        cuda = ctypes.CDLL(sys.argv[1])
        context = ctypes.c_void_p()
        assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 2) == 0
        print("ready", flush=True)
        sys.stdin.read()
    """
    argv = [sys.executable, "-c", textwrap.dedent(text), str(libraries / "lib/libcuda.so.1")]
    with subprocess.Popen(
        argv, env={"FMSLURM_LAB_HARDWARE": str(hardware)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        query = ("--query-compute-apps=pid,gpu_bus_id,process_name", "--format=csv,noheader")
        code, out, _ = smi(libraries, hardware, *query)
        assert (code, out) == (0, f"{process.pid}, 00000000:75:00.0, {sys.executable}\n")
        assert smi(libraries, other, *query)[1] == ""
        process.communicate(timeout=120)
    assert smi(libraries, hardware, *query)[1] == ""


NVML = """
import ctypes, json, sys
from ctypes import byref, c_char_p, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
nvml = ctypes.CDLL(sys.argv[1])
nvml.nvmlErrorString.restype = c_char_p
class Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint),
                ("id", c_uint), ("subsystem", c_uint), ("bus_id", ctypes.c_char * 32)]
class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]
class Field(ctypes.Structure):
    _fields_ = [("field", c_uint), ("scope", c_uint), ("timestamp", c_longlong), ("latency", c_longlong),
                ("type", c_int), ("result", c_int), ("value", c_ulonglong)]
def say(*values):
    print(json.dumps(values))
"""


def nvml(libraries: Path, hardware: Path | None, text: str) -> list[list[object]]:
    env = {} if hardware is None else {"FMSLURM_LAB_HARDWARE": str(hardware)}
    argv = [sys.executable, "-c", NVML + textwrap.dedent(text), str(libraries / "lib/libnvidia-ml.so.1")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nvml_reads_the_same_state(libraries: Path, tmp_path: Path) -> None:
    hardware = write_node(
        tmp_path, "n0", gpu__1__ecc_uncorrected=2, gpu__1__remap_failed=1, gpu__1__nvlinks=17,
        gpu__1__temperature=44, gpu__1__memory_used_mib=10, gpu__1__recovery="Reset", gpu__2__lost=1,
    )  # fmt: skip
    text = """
        count, handle, name, pci, memory = c_uint(), c_void_p(), ctypes.create_string_buffer(96), Pci(), Memory()
        say(nvml.nvmlDeviceGetCount_v2(byref(count)), nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(byref(count)), count.value)
        say(nvml.nvmlDeviceGetHandleByIndex_v2(8, byref(handle)), nvml.nvmlDeviceGetHandleByIndex_v2(1, byref(handle)))
        nvml.nvmlDeviceGetName(handle, name, 96)
        say(name.value.decode(), nvml.nvmlDeviceGetUUID(handle, name, 4))
        nvml.nvmlDeviceGetPciInfo_v3(handle, byref(pci))
        nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory))
        say(pci.bus_id.decode(), pci.legacy.decode(), pci.bus, memory.used, ctypes.sizeof(pci), ctypes.sizeof(Field))
        errors, rows, link, heat = c_ulonglong(), [c_uint() for _ in range(4)], [c_int(), c_int()], c_uint()
        nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0, byref(errors))
        nvml.nvmlDeviceGetRemappedRows(handle, *map(byref, rows))
        nvml.nvmlDeviceGetNvLinkState(handle, 16, byref(link[0]))
        nvml.nvmlDeviceGetNvLinkState(handle, 17, byref(link[1]))
        nvml.nvmlDeviceGetTemperature(handle, 0, byref(heat))
        say(errors.value, [row.value for row in rows], [one.value for one in link], heat.value)
        wanted = (Field * 2)(Field(field=230), Field(field=9999))
        nvml.nvmlDeviceGetFieldValues(handle, 2, wanted)
        say(wanted[0].result, wanted[0].value, wanted[1].result)
        lost = nvml.nvmlDeviceGetHandleByIndex_v2(2, byref(handle))
        say(lost, nvml.nvmlErrorString(lost).decode(), nvml.nvmlDeviceGetTemperature(handle, 0, byref(heat)))
        say(nvml.nvmlShutdown(), nvml.nvmlShutdown())
    """
    assert nvml(libraries, hardware, text) == [
        [1, 0, 0, 8],
        [2, 0],
        ["NVIDIA H100 80GB HBM3", 7],
        ["00000000:64:00.0", "0000:64:00.0", 0x64, 10 << 20, 68, 40],
        [2, [0, 0, 0, 1], [1, 0], 44],
        [0, 1, 3],
        [15, "GPU is lost", 15],
        [0, 1],
    ]


def test_nvml_without_a_driver(libraries: Path, tmp_path: Path) -> None:
    assert nvml(libraries, None, "say(nvml.nvmlInit_v2())") == [[9]]
    mismatch = write_node(tmp_path, "n0", driver__init_error=18)
    assert nvml(libraries, mismatch, "say(nvml.nvmlInit_v2(), nvml.nvmlErrorString(18).decode())") == [
        [18, "Driver/library version mismatch"]
    ]


def test_soname_is_the_real_one(libraries: Path) -> None:
    for product in standins.PRODUCTS:
        if product.library:
            ctypes.CDLL(str(libraries / "lib" / product.name))
            text = (libraries / "lib" / product.name).read_bytes()
            assert product.name.encode() + b"\0" in text


def test_nvlink_states_and_errors(libraries: Path, tmp_path: Path) -> None:
    hardware = write_node(tmp_path, "n0", gpus=2, gpu__1__nvlinks=17, gpu__0__nvlink_errors=3)
    code, out, _ = smi(libraries, hardware, "nvlink", "-s")
    assert code == 0
    assert out.count("26.562 GB/s") == 35
    assert "\t Link 17: <inactive>" in out
    code, out, _ = smi(libraries, hardware, "nvlink", "-e")
    assert code == 0
    assert "\t Link 0: Replay Errors: 3" in out
    assert out.count("CRC Errors: 0") == 36


def test_counters_and_thresholds_of_newer_drivers(libraries: Path, tmp_path: Path) -> None:
    told = {"gpu__0__sram_threshold": 1, "gpu__0__hw_thermal_us": 7, "gpu__0__tlimit": -2, "gpu__0__vbios": "96.1"}
    hardware = write_node(tmp_path, "n0", gpus=1, driver="590.48.01", **told)
    names = (
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded,temperature.gpu.tlimit,vbios_version,"
        "clocks_event_reasons_counters.hw_thermal_slowdown"
    )
    _, out, _ = smi(libraries, hardware, f"--query-gpu={names}", "--format=csv,noheader")
    assert out == "Yes, -2, 96.1, 7 us\n"
    old = write_node(tmp_path, "n1", gpus=1, driver="535.1")
    code, out, _ = smi(libraries, old, f"--query-gpu={names}", "--format=csv")
    assert (code, out.splitlines()[0]) == (
        2,
        'Field "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded" is not a valid field to query.',
    )
