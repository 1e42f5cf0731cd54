"""A small, real data-parallel training job: numpy on the host, gradients exchanged between nodes, sharded checkpoints.

One process per node. Every step each rank computes the gradient of its own slice of a synthetic regression, passes it
through every GPU of its node (a copy to the device and back through libcuda, so that a lost GPU fails the job as it
does a real one), the ranks add their gradients in rank order, and all apply the same momentum update. All numbers are
float64 and every sum has a fixed order, so the final weights are the same bits however often the run was interrupted.

Runs under plain sbatch (see train.sbatch), with fmslurm's checkpoints where FMSLURM_* is set, and without Slurm:

    python3 train.py --local 4 --steps 200 --out weights.npy      # four ranks on loopback: the uninterrupted run
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# One thread: the order of additions inside a matrix product must not depend on how many cores a node has.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from slurm_ext.staging import Checkpoints

FEATURES, HIDDEN, BATCH = 24, 48, 64
LEARNING_RATE, MOMENTUM = 0.05, 0.9
CONNECT_TIMEOUT_S = 60.0
PEER_TIMEOUT_S = 60.0


class GpuError(Exception):
    """The CUDA driver refused a call."""


class Gpus:
    """Every GPU of this node, through libcuda alone; without a driver there are none and training stays on the CPU."""

    def __init__(self) -> None:
        self.buffers: list[tuple[ctypes.c_void_p, ctypes.c_uint64]] = []
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            print("no CUDA driver here: training on the CPU", flush=True)
            return
        self._call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for index in range(count.value):
            context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(index))
            self._call("cuCtxSetCurrent", context)
            self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(parameter_count() * 8))
            self.buffers.append((context, pointer))

    def pass_through(self, values: np.ndarray) -> np.ndarray:
        """Return the values after a copy to and from each GPU in turn. Raise GpuError where a device fails."""
        for index, (context, pointer) in enumerate(self.buffers):
            self.index = index
            self._call("cuCtxSetCurrent", context)
            self._call(
                "cuMemcpyHtoD_v2", pointer, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes)
            )
            self._call(
                "cuMemcpyDtoH_v2", values.ctypes.data_as(ctypes.c_void_p), pointer, ctypes.c_size_t(values.nbytes)
            )
        return values

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            known = self.cuda.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value
            words = text.value.decode() if known and text.value else "unrecognized error code"
            raise GpuError(f"CUDA error: {words} (code {code}) in {name}")


def parameter_count() -> int:
    """Return how many float64 the model has."""
    return FEATURES * HIDDEN + HIDDEN + HIDDEN + 1


def gradient(weights: np.ndarray, step: int, rank: int) -> tuple[np.ndarray, float]:
    """Return the gradient and the loss of one rank's batch; the batch depends on step and rank only."""
    generator = np.random.default_rng([step, rank])
    inputs = generator.standard_normal((BATCH, FEATURES))
    wanted = np.sin(inputs[:, :3].sum(axis=1)) + 0.5 * inputs[:, 3]
    first = weights[: FEATURES * HIDDEN].reshape(FEATURES, HIDDEN)
    bias = weights[FEATURES * HIDDEN : FEATURES * HIDDEN + HIDDEN]
    second = weights[FEATURES * HIDDEN + HIDDEN : -1]
    hidden = np.tanh(inputs @ first + bias)
    error = hidden @ second + weights[-1] - wanted
    back = np.outer(error, second) * (1.0 - hidden * hidden)
    parts = [inputs.T @ back, back.sum(axis=0), hidden.T @ error, np.array([error.sum()])]
    return np.concatenate([part.ravel() for part in parts]) / BATCH, float((error * error).mean())


class Exchange:
    """All ranks' connections by way of rank 0, which adds in rank order: slow for many nodes, exact for a few."""

    def __init__(self, rank: int, world: int, host: str, port: int) -> None:
        self.rank, self.world = rank, world
        self.peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        if rank == 0:
            with socket.create_server(("", port), backlog=world, reuse_port=False) as server:
                for _ in range(world - 1):
                    server.settimeout(max(deadline - time.monotonic(), 0.1))
                    connection, _ = server.accept()
                    connection.settimeout(PEER_TIMEOUT_S)
                    self.peers[struct.unpack("<i", self._exactly(connection, 4))[0]] = connection
            return
        while True:
            try:
                connection = socket.create_connection((host, port), timeout=2.0)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        connection.settimeout(PEER_TIMEOUT_S)
        connection.sendall(struct.pack("<i", rank))
        self.peers[0] = connection

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' values, added in rank order: the same bits on every rank, in every run."""
        if self.rank:
            self.peers[0].sendall(values.tobytes())
            return np.frombuffer(self._exactly(self.peers[0], values.nbytes), dtype=np.float64)
        total = values.copy()
        for rank in range(1, self.world):
            total += np.frombuffer(self._exactly(self.peers[rank], values.nbytes), dtype=np.float64)
        for rank in range(1, self.world):
            self.peers[rank].sendall(total.tobytes())
        return total

    @staticmethod
    def _exactly(connection: socket.socket, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            chunk = connection.recv(count - len(received))
            if not chunk:
                raise ConnectionError("Connection closed by remote peer")
            received += chunk
        return bytes(received)


def shards(world: int) -> Iterator[slice]:
    """Yield each rank's part of the parameters, as a sharded optimizer keeps it."""
    size = -(-parameter_count() // world)
    for rank in range(world):
        yield slice(rank * size, min((rank + 1) * size, parameter_count()))


def restore(folder: Path, world: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and momentum from the shards in a checkpoint folder."""
    weights, momentum = np.zeros(parameter_count()), np.zeros(parameter_count())
    for rank, part in enumerate(shards(world)):
        stored = np.load(folder / f"state-{rank}.npy")
        weights[part], momentum[part] = stored[0], stored[1]
    return weights, momentum


def train(rank: int, world: int, arguments: argparse.Namespace) -> None:
    """Train from the newest checkpoint (or from the start) to the last step."""
    checkpoints = Checkpoints() if arguments.checkpoint_every else None
    generator = np.random.default_rng(7)
    weights, momentum, start = generator.standard_normal(parameter_count()) * 0.1, np.zeros(parameter_count()), 0
    found = checkpoints.restore() if checkpoints else None
    if found is not None:
        weights, momentum = restore(Path(found.path), world)
        start = found.step
        print(f"rank {rank}: restored step {start} from {found.path}", flush=True)
    gpus = Gpus()
    exchange = Exchange(rank, world, arguments.host, arguments.port)
    mine = list(shards(world))[rank]
    for step in range(start + 1, arguments.steps + 1):
        began = time.monotonic()
        local, loss = gradient(weights, step, rank)
        total = exchange.add(np.append(gpus.pass_through(local), loss))
        momentum = MOMENTUM * momentum + total[:-1] / world
        weights = weights - LEARNING_RATE * momentum
        if rank == 0 and (step % 10 == 0 or step == arguments.steps):
            print(f"step {step} loss {total[-1] / world:.6f}", flush=True)
        if checkpoints and (step % arguments.checkpoint_every == 0 or step == arguments.steps):
            with checkpoints.step(step, shard=rank, world=world) as folder:
                np.save(Path(folder) / f"state-{rank}.npy", np.stack([weights[mine], momentum[mine]]))
        time.sleep(max(arguments.step_ms / 1000.0 - (time.monotonic() - began), 0.0))
    if rank == 0:
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        if arguments.out:
            partial = Path(f"{arguments.out}.partial.npy")
            np.save(partial, weights)
            partial.replace(arguments.out)
        print(f"finished: step {arguments.steps}, weights sha256 {digest}", flush=True)


def main() -> int:
    """Parse the command line, find out who we are from Slurm, train, and die as a real trainer does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0: none")
    parser.add_argument("--step-ms", type=float, default=0.0, help="a step takes at least this long, as on a GPU")
    parser.add_argument("--host", default=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=int(os.environ.get("MASTER_PORT", "29500")))
    parser.add_argument("--out", default="", help="file for the final weights (rank 0)")
    parser.add_argument("--local", type=int, default=0, help="start this many ranks on loopback, without Slurm")
    parser.add_argument("--rank", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    parser.add_argument("--world", type=int, default=int(os.environ.get("SLURM_NTASKS", "1")))
    arguments = parser.parse_args()
    if arguments.local:
        command = [sys.executable, __file__, *sys.argv[1:], "--local", "0", "--world", str(arguments.local)]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(arguments.local)]
        return max(abs(rank.wait(timeout=600)) for rank in ranks)
    try:
        train(arguments.rank, arguments.world, arguments)
    except GpuError as exc:
        print(f"[rank{arguments.rank}]: RuntimeError: {exc}", file=sys.stderr, flush=True)
        return 1
    except (ConnectionError, TimeoutError) as exc:
        print(f"[rank{arguments.rank}]: RuntimeError: {exc or type(exc).__name__}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
