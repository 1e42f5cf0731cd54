"""Compile the stand-ins for the NVIDIA libraries: libcuda, libnccl, libnvidia-ml and nvidia-smi (README.md beside this file).

`build` is all that others call. The libraries carry the real sonames, so the code that loads the real ones loads them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError

#: A cold compile of all four takes 2-4 s on two cores; a loaded machine gets ten times that.
COMPILE_TIMEOUT_S = 60.0

FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread", "-fvisibility=hidden")

_SOURCES = Path(__file__).resolve().parent
_STAMP = ".standins.sha256"


class Product(NamedTuple):
    """One file to build: where it goes (`lib` or `bin`), its C sources, and whether it is a library."""

    folder: str
    name: str
    sources: tuple[str, ...]
    library: bool = True


PRODUCTS = (
    Product(
        "lib",
        "libcuda.so.1",
        (
            "cuda_device.c",
            "cuda_context.c",
            "cuda_stream.c",
            "cuda_event.c",
            "cuda_heap.c",
            "cuda_memory.c",
            "cuda_module.c",
            "cuda_kernels.c",
            "cuda_errors.c",
            "processes.c",
            "hardware.c",
            "hardware_table.c",
        ),
    ),
    Product(
        "lib",
        "libnccl.so.2",
        (
            "nccl_init.c",
            "nccl_config.c",
            "nccl_comm.c",
            "nccl_split.c",
            "nccl_group.c",
            "nccl_api.c",
            "nccl_ring.c",
            "nccl_collective.c",
            "nccl_local.c",
            "nccl_faults.c",
            "nccl_reduce.c",
            "nccl_bootstrap.c",
            "nccl_connect.c",
            "nccl_net.c",
            "nccl_plugin.c",
            "nccl_log.c",
            "hardware.c",
            "hardware_table.c",
        ),
    ),
    Product("lib", "libnvidia-ml.so.1", ("nvml.c", "processes.c", "hardware.c", "hardware_table.c")),
    Product(
        "bin",
        "nvidia-smi",
        ("nvidia_smi.c", "nvidia_smi_fields.c", "processes.c", "hardware.c", "hardware_table.c"),
        library=False,
    ),
)


def build(lib_dir: str, bin_dir: str, *, env: Mapping[str, str] | None = None) -> None:
    """Compile what is missing or older than its sources into `lib_dir` and `bin_dir`; both are made where absent.

    Files appear by rename, so that a process that loads the old one goes on with it. Nothing is compiled when the
    content of sources, flags and compiler are those of the last build there. `env` is the compiler's environment: a lab
    puts its mark and its own folder for temporary files there. Raise LackingError where gcc is absent,
    FmslurmError where it refuses the sources or takes longer than COMPILE_TIMEOUT_S.
    """
    folders = {"lib": Path(lib_dir), "bin": Path(bin_dir)}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    compiler = _compiler()
    stamp = folders["lib"] / _STAMP
    wanted = content_hash(compiler)
    built = all((folders[product.folder] / product.name).is_file() for product in PRODUCTS)
    if built and stamp.is_file() and stamp.read_text() == wanted:
        return
    with ThreadPoolExecutor(max_workers=2) as pool:
        for done in [pool.submit(_compile, compiler, product, folders[product.folder], env) for product in PRODUCTS]:
            done.result()
    with _replacing(stamp) as path:
        path.write_text(wanted)


def content_hash(compiler: str) -> str:
    """Return the SHA-256 over compiler, flags, products and the text of all sources and headers."""
    digest = hashlib.sha256(repr((compiler, FLAGS, PRODUCTS)).encode())
    for path in sorted([*_SOURCES.glob("*.c"), *_SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _compiler() -> str:
    found = shutil.which("gcc", path=command.CLEAN_PATH)
    if found is None:
        raise LackingError(
            "the lab compiles its simulated GPU libraries and found no gcc",
            remedy="Install gcc and the C library headers (Debian: apt-get install gcc libc6-dev)",
        )
    return found


def _compile(compiler: str, product: Product, folder: Path, env: Mapping[str, str] | None) -> None:
    target = folder / product.name
    shape = ("-shared", f"-Wl,-soname,{product.name}", "-Wl,-z,defs") if product.library else ()
    sources = tuple(str(_SOURCES / source) for source in product.sources)
    with _replacing(target) as path:
        argv = (compiler, *FLAGS, *shape, "-o", str(path), *sources, "-ldl")
        result = command.run(argv, timeout_s=COMPILE_TIMEOUT_S, env=env)
        if not result.ok:
            raise FmslurmError(f"cannot compile the stand-in {product.name}: {result.words()}\n{result.stderr[:4000]}")
        path.chmod(0o755)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Give a temporary path beside `target`; rename it there when the block ends well, else remove it."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.replace(target)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
