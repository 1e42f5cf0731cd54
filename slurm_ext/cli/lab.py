"""`fmslurm lab`: bring a lab up, look at it, run in it, break it, heal it, take it down."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from slurm_ext.lab import faults, model
from slurm_ext.lab.clean import stopped_once, undisturbed
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.floors import measure as measure_floors
from slurm_ext.lab.model import LabOptions


def _say(line: str) -> None:
    click.echo(f"lab: {line}", err=True)


_dir = click.option(
    "--dir",
    "directory",
    default=model.DEFAULT_DIR,
    show_default=True,
    envvar="FMSLURM_LAB_DIR",
    help="folder of the lab",
)


@click.group()
def lab() -> None:
    """A real Slurm on this machine with simulated hardware."""


@lab.command()
@_dir
@click.option("-n", "--nodes", default=8, show_default=True, help="how many nodes")
@click.option("--prefix", default="", help="put before every host name")
@click.option("--type", "instance_type", default="p5.48xlarge", show_default=True, help="what the nodes play")
@click.option("--mode", type=click.Choice(["auto", *model.MODES]), default="auto", show_default=True)
@click.option("--cgroup", is_flag=True, help="proctrack/cgroup (cgroup v1) in place of proctrack/linuxproc")
@click.option(
    "--ready", is_flag=True, help="with gres and topology, as `gres generate` and `topology generate` leave it"
)
@click.option("--s3", type=click.Choice(["wait", "background", "off"]), default="wait", show_default=True)
@click.option("--timeout", "timeout_s", default=90.0, show_default=True, help="seconds until every node must be up")
@click.option("--keep-logs", is_flag=True, help="leave the logs of a start that failed")
@click.option("--floors/--no-floors", "measure", default=True, help="measure what bandwidth this fabric gives (8 s)")
def up(
    directory: str,
    nodes: int,
    prefix: str,
    instance_type: str,
    mode: str,
    cgroup: bool,
    ready: bool,
    s3: str,
    timeout_s: float,
    keep_logs: bool,
    measure: bool,
) -> None:
    """Bring a lab up: slurmctld, a slurmd for each node, a munged and an S3 server of its own."""
    options = LabOptions(directory, nodes, prefix, instance_type, mode, cgroup, ready, s3, timeout_s, keep_logs)
    with stopped_once():
        _up(options, measure)


def _up(options: LabOptions, measure: bool) -> None:
    made = Lab.up(options, _say)
    if measure:
        try:
            found = measure_floors(made)
        except BaseException:  # Ctrl-C, too: what `up` has not finished it does not leave
            _say("taking down what has been made so far")
            with undisturbed():
                made.down(keep_logs=options.keep_logs)
            raise
        _say("floors of this simulated fabric (GB/s): " + ", ".join(f"{k} {v:.3g}" for k, v in sorted(found.items())))
    click.echo(f"lab: up. `. {made.dir}/env.sh` or `fmslurm lab run -- CMD` speaks to it", err=True)


@lab.command()
@_dir
@click.option("--json", "as_json", is_flag=True, help="as one JSON object")
def status(directory: str, as_json: bool) -> None:
    """Show what the lab has, what of it lives, and which faults are on."""
    found = Lab.load(directory).status()
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{found['dir']}: Slurm {found['slurm_version']}, {found['mode']} ({found['why_mode']})")
    click.echo(found["simulated"])
    daemons = ", ".join(f"{name} {'lives' if lives else 'is dead'}" for name, lives in found["head"]["alive"].items())
    click.echo(f"{found['head']['name']} {found['head']['address']}: {daemons}; stand-ins {found['standins']}")
    for node in found["nodes"]:
        faults = f"  faults: {', '.join(node['faults'])}" if node["faults"] else ""
        lives = "" if node["slurmd"] else "  slurmd is dead"
        click.echo(f"{node['name']:<8} {node['address']:<15} {node['instance_id']} {node['state']}{lives}{faults}")


@lab.command(context_settings={"ignore_unknown_options": True})
@_dir
@click.option("--node", help="inside this node's namespaces (`head` is one, too)")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def run(directory: str, node: str | None, argv: tuple[str, ...]) -> None:
    """Run a command in the lab's environment: `fmslurm lab run --node n3 -- CMD`."""
    made = Lab.load(directory)
    # The caller's environment stays (TERM, HOME); what points to a Slurm points to the lab's. The command takes our
    # place, so its signals, its terminal and its exit code are its own.
    path = f"{made.dir}/bin:{os.environ.get('PATH', os.defpath)}"
    if (own := Path(__file__).parents[2] / "bin").joinpath("fmslurm").is_file():
        path += f":{own}"  # a checkout's fmslurm, where no other one is found first
    env = {**os.environ, **made.env(node), "PATH": path}
    words = made.argv(argv, node)
    sys.stdout.flush()
    try:
        os.execvpe(words[0], words, env)  # noqa: S606  no shell on purpose
    except FileNotFoundError:
        click.echo(f"fmslurm: no program {words[0]}", err=True)
        raise click.exceptions.Exit(127) from None


@lab.command()
@_dir
@click.option("--node", help="only this node's slurmd")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="seconds until all must be up again")
def restart(directory: str, node: str | None, timeout_s: float) -> None:
    """Restart slurmctld and the slurmds, and wait until all nodes are up again; jobs live on."""
    Lab.load(directory, _say).restart(node, timeout_s=timeout_s)


@lab.command()
@_dir
@click.argument("node")
@click.argument("kind", type=click.Choice(list(faults.KINDS)))
@click.option("--gpu", type=int, help="which GPU, from 0 (gpu-*, ecc, rail-slow; nccl-*: all by default)")
@click.option("--xid", type=int, help="which Xid (gpu-xid; 79 by default)")
@click.option(
    "--count",
    type=int,
    help="errors (ecc; 2, memory-error; 1), adapters found (nic-count), packets per GB (efa-retransmit) or lost (efa-errors)",
)
@click.option("--rate", help="as tc writes it (slow-link; 100mbit by default; rail-slow: 20mbit)")
@click.option("--where", help="init, allreduce or allreduce:N (nccl-*; allreduce by default); gpu-dstate: also context")
@click.option("--how", help="stale, eio or hang (lustre-stale; stale by default); send or recv (nccl-wrong-result)")
@click.option("--offset", type=int, help="which byte of the buffer (nccl-wrong-result)")
@click.option("--after-ms", type=int, help="after how much traffic it begins to be late (nccl-slow)")
@click.option("--delay-ms", type=int, help="how late (nccl-slow, 300 by default; nccl-late, 3000)")
@click.option("--free-kb", type=int, help="what space is left (disk-full; none by default)")
def fault(directory: str, node: str, kind: str, **options: object) -> None:
    """Break something: NODE is a node's name, or - for s3-down."""
    click.echo(f"{node} {kind}: {Lab.load(directory).fault(node, kind, **options)}")


@lab.command()
@_dir
@click.argument("node")
@click.argument("kind", required=False, default="", type=click.Choice(["", *faults.KINDS]), metavar="[KIND]")
def heal(directory: str, node: str, kind: str) -> None:
    """Undo the faults of a node, all or those of one KIND."""
    said = Lab.load(directory).heal(node, kind)
    for line in said or ["nothing was broken"]:
        click.echo(f"{node} {line}")


@lab.command()
@_dir
@click.option("--keep-logs", is_flag=True, help="leave the folder with its logs")
def down(directory: str, keep_logs: bool) -> None:
    """Take the lab down, whatever state it is in, and leave nothing: no process, namespace, link, mount or file."""
    from slurm_ext.lab import clean

    path = os.path.realpath(directory)
    if not os.path.isdir(path):
        click.echo(f"lab: nothing in {path}", err=True)
        return
    with clean.lock(path):
        clean.down(path, keep_logs=keep_logs)
    click.echo(f"lab: {path} is down, nothing of it is left", err=True)


@lab.command()
@click.option("--dir", "directory", default=model.DEMO_DIR, show_default=True, help="folder of the demo's lab")
@click.option("--keep", is_flag=True, help="leave the lab standing for a look around")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object of promises")
def demo(directory: str, keep: bool, as_json: bool) -> None:
    """Play the main job and check every promise: submit, gate, a lost GPU, a slow link, requeue, restore, complete."""
    from slurm_ext.lab.demo import play

    sys.exit(play(directory, keep=keep, as_json=as_json))
