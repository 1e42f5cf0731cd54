"""`up`, step by step: plan, folder, namespaces and network, daemons, hardware, and what each step must be undone by."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import yaml

from slurm_ext import command, files
from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.aws.topology_types import layers
from slurm_ext.command import CLEAN_PATH
from slurm_ext.errors import FmslurmError, LackingError, UsageError
from slurm_ext.lab import conf, daemons, hardware, journal, model, network, plan, process, s3
from slurm_ext.lab.model import LabNode, LabOptions, State
from slurm_ext.slurm.conf_file import stamped

#: Where proctrack/cgroup of cgroup v1 keeps its processes.
FREEZER = "/sys/fs/cgroup/freezer"

Say = Callable[[str], None]


def up(directory: str, options: LabOptions, say: Say) -> State:
    """Bring a lab up in an empty folder whose lock the caller holds; on any exception the caller takes it down."""
    started = time.monotonic()
    row = catalogue.find(options.instance_type)
    if row is None:
        raise UsageError(
            f"no instance type {options.instance_type!r} in the catalogue",
            remedy=f"It has {', '.join(sorted(catalogue.CATALOGUE))}",
        )
    identity = plan.lab_id(directory)
    journal.intend(directory, "lab", dir=directory, id=identity)
    version, version_text = daemons.slurm_version()
    with network.choosing():
        state = _plan(directory, identity, options, version_text)
        say(f"lab in {directory}: Slurm {version_text}, {options.nodes} x {row.name}, {state.mode} ({state.why_mode})")
        say(model.SIMULATED)
        _write_folders(state)
        save(state)
        if state.mode == "netns":
            state = _build_network(state)
    env = daemons.marked_environment(state)
    if state.s3_port:
        journal.intend(directory, "process", name="weed")
        s3.prepare(directory)
        s3.start(state, env)
    _write_configuration(state, row, version, ready=options.ready)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # The compiler works while Slurm comes up; no job needs a stand-in before `up` returns.
        standins = pool.submit(_build_standins, state, say)
        _start_slurm(state, row, say, timeout_s=options.timeout_s)
        say(f"{len(state.nodes)} nodes are up after {time.monotonic() - started:.1f} s")
        state = replace(state, standins=standins.result())
    if state.s3_port and options.s3 == "wait":
        s3.wait(state, timeout_s=options.timeout_s)
        say(f"S3 answers after {time.monotonic() - started:.1f} s")
    state = replace(state, stage="up")
    save(state)
    return state


def _start_slurm(state: State, row: InstanceType, say: Say, *, timeout_s: float) -> None:
    for node in (*state.nodes, state.head):
        _build_node(state, node, row)
    say(f"daemons: munged, slurmctld, {len(state.nodes)} slurmd")
    journal.intend(state.dir, "process", name="daemons")
    daemons.start_munged(state)
    daemons.start_slurmctld(state)
    since = time.time()
    for node in state.nodes:
        daemons.start_slurmd(state, node)
    daemons.wait_up(state, state.nodes, timeout_s=timeout_s, since=since)


def save(state: State) -> None:
    """Write lab.json."""
    files.write_atomic(f"{state.dir}/lab.json", model.dump(state))


def write_site(state: State) -> None:
    """Write the lab's fmslurm.yaml."""
    slurm_bin = os.path.dirname(shutil.which("scontrol", path=CLEAN_PATH) or "")
    settings = conf.site_settings(state, python=_python(state), slurm_bin=slurm_bin)
    text = "# The lab's own settings, written by `fmslurm lab up`: here every room enforces.\n"
    text += yaml.safe_dump(settings, sort_keys=False)
    files.write_atomic(f"{state.dir}/etc/fmslurm/fmslurm.yaml", text.encode())


def _python(state: State) -> str:
    """Return this interpreter under a path that sh, slurm.conf and systemd take as it is: `install` refuses others.

    A checkout may be anywhere, in a folder with a space in its name, too: then it is reached by a link in the lab.
    """
    if (chosen := interpreter()) != sys.executable or re.fullmatch(r"[A-Za-z0-9/._+@:-]+", chosen):
        return chosen
    link = Path(state.dir, "python")
    if not link.is_symlink():
        link.symlink_to(Path(sys.executable).parents[1])
    return str(link / "bin" / Path(sys.executable).name)


def interpreter(ours: str = sys.executable, system: str = "/usr/bin/python3") -> str:
    """Return our own Python where every user may start it, else the system's: a task prolog runs as the user.

    The standard library is all that hooks need.
    """
    path = Path(os.path.realpath(ours))
    for_all = path.stat().st_mode & 0o001 and all(folder.stat().st_mode & 0o001 for folder in path.parents)
    return ours if for_all or not os.access(system, os.X_OK) else system


def slurm_hostname() -> str:
    """Return this machine's name as Slurm sees it: short."""
    return socket.gethostname().partition(".")[0]


def _plan(directory: str, identity: str, options: LabOptions, version_text: str) -> State:
    why = network.probe() if options.mode in ("auto", "netns") else "asked for"
    if options.mode == "netns" and why:
        raise UsageError(f"no namespaces here: {why}", remedy="Leave --mode out, or use `--mode loopback`")
    mode = "loopback" if why else "netns"
    words = "a network, UTS, PID and mount namespace for each node"
    if mode == "loopback":
        words = "all nodes on 127.0.0.1, a port each" + ("" if why == "asked for" else f", since {why}")
    if mode == "loopback" and network.only_loopback():
        # getaddrinfo with AI_ADDRCONFIG answers nothing then, and slurmctld and slurmd end: seen on 22.05 to 26.05.
        raise LackingError(
            "this machine has no address but loopback's, and Slurm's daemons do not start so",
            remedy="Give it a network, e.g. `ip link add dummy0 type dummy` with any address, or let it have namespaces",
        )
    if options.cgroup and (mode == "loopback" or not os.path.exists(f"{FREEZER}/cgroup.procs")):
        raise LackingError(
            f"--cgroup needs {'namespaces' if mode == 'loopback' else f'cgroup v1 with {FREEZER}'}",
            remedy="Leave it out: proctrack/linuxproc needs neither",
        )
    wants_s3 = options.s3 != "off" and bool(s3.program())
    cluster = "lab" + identity
    base = State(
        dir=directory,
        id=identity,
        mode=mode,
        why_mode=words,
        prefix=options.prefix,
        cluster=cluster,
        slurm_version=version_text,
        instance_type=options.instance_type,
        cgroup=options.cgroup,
        subnet="127.0.0.0/8",
        head=LabNode(f"{options.prefix}head", -1, "127.0.0.1", 0, plan.instance_id(identity, -1)),
        nodes=(),
        controller_port=plan.CONTROLLER_PORT,
        created=time.time(),
    )
    if mode == "netns":
        subnet = plan.choose_subnet(identity, network.networks_in_use())
        head = replace(base.head, address=str(subnet[1]))
        nodes = plan.nodes_in_subnet(identity, options.prefix, options.nodes, subnet)
        s3_ports: tuple[int, ...] = plan.S3_PORTS if wants_s3 else ()
        base = replace(base, subnet=str(subnet), head=head, nodes=nodes, host_address=str(subnet[2]))
        base = replace(base, link=plan.link_name(identity))
    else:
        count = options.nodes + 1 + len(plan.S3_PORTS)
        free = plan.ports(identity, count, network.ports_in_use())
        nodes = plan.nodes_on_loopback(identity, options.prefix, free[: options.nodes])
        s3_ports = free[options.nodes + 1 :] if wants_s3 else ()
        base = replace(base, nodes=nodes, controller_port=free[options.nodes])
    return replace(base, s3_ports=s3_ports, s3_port=s3_ports[0] if s3_ports else 0)


def _build_network(state: State) -> State:
    files.write_atomic(f"{state.dir}/etc/hosts", conf.hosts_file(state, socket.gethostname()).encode())
    if state.cgroup:
        journal.intend(state.dir, "cgroup", path=control_group(state))
    for node in (state.head, *state.nodes):
        journal.intend(state.dir, "process", name="holder", node=node.name)
        state = state.with_node(hold(state, node))
    save(state)
    journal.intend(state.dir, "link", name=state.link)
    network.build_head(state.head, state.subnet, state.link, state.host_address)
    network.plug_nodes(state.head, state.nodes, state.subnet)
    return state


def hold(state: State, node: LabNode) -> LabNode:
    """Make a node's namespaces and return the node with the process that holds them."""
    env = daemons.marked_environment(state)
    node = replace(node, holder=process.start_holder(node.name, f"{state.dir}/etc/hosts", env))
    if state.cgroup and node.index >= 0:
        # The node sees its own group as the whole hierarchy: no other lab, and no Slurm of this machine, meets it there.
        own = f"{control_group(state)}/{node.name}"
        os.makedirs(own, exist_ok=True)
        bound = command.run(process.enter(node, ["mount", "--bind", own, FREEZER]), timeout_s=10.0)
        if not bound.ok:
            raise FmslurmError(f"control group of {node.name}: {bound.words()}")
    return node


def control_group(state: State) -> str:
    """Return the one control group of a lab with proctrack/cgroup."""
    return f"{FREEZER}/{state.link}"


def _write_folders(state: State) -> None:
    home = Path(state.dir)
    home.chmod(0o755)
    for name in (
        "etc/slurm",
        "etc/fmslurm",
        "slurm/state",
        "slurm/spool",
        "run",
        "log",
        "bin",
        "lib",
        "dev",
        "share",
        "share/ledger",
    ):
        (home / name).mkdir(parents=True, exist_ok=True)
    for name in ("etc/hooks/prolog.d", "etc/hooks/epilog.d", "opt/fmslurm", "nodes"):
        (home / name).mkdir(parents=True, exist_ok=True)
    for node in state.nodes:
        (home / "slurm/spool" / node.name).mkdir(parents=True, exist_ok=True)
    for node in (*state.nodes, state.head):
        for name in ("root", "state", "run", "log"):
            (home / "nodes" / node.name / name).mkdir(parents=True, exist_ok=True)
        _open_to_all(home / "nodes" / node.name / "nvme")
    _open_to_all(home / "lustre")


def _open_to_all(folder: Path) -> None:
    # As /tmp: every user of a job may write here and nobody may remove another's files.
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)


def _write_configuration(state: State, row: InstanceType, version: tuple[int, int], *, ready: bool) -> None:
    hostname = slurm_hostname()
    texts = {
        "etc/slurm/slurm.conf": conf.slurm_conf(state, version, hostname),
        "etc/slurm/nodes.conf": stamped(conf.nodes_conf(state, row, hostname, gres=ready)),
        "etc/slurm/gres.conf": stamped(conf.gres_conf(state, row, gres=ready)),
        # Ours, so that `fmslurm topology` and `fmslurm gres` may replace them.
        "etc/slurm/topology.conf": stamped(conf.topology_conf(state, ready=ready)),
        "etc/slurm/cgroup.conf": conf.cgroup_conf(cgroup=state.cgroup, version=version),
        "etc/slurm/fmslurm.conf": "# Empty until `fmslurm install` names its hooks here.\n",
        "etc/hosts": conf.hosts_file(state, socket.gethostname()),
        "ec2.json": conf.ec2_answer(state, layers(row.name) or 3),
        "nodes.csv": conf.nodes_csv(state.nodes),
        "share/addresses": "".join(f"{node.name} {node.address}\n" for node in state.nodes),
        "env.sh": _env_sh(state),
    }
    for name, text in texts.items():
        files.write_atomic(f"{state.dir}/{name}", text.encode())
    write_site(state)


def _env_sh(state: State) -> str:
    env = daemons.environment(state)
    lines = [f"export {key}={env[key]}" for key in ("SLURM_CONF", "FMSLURM_CONFIG")]
    return "\n".join([f"# `. {state.dir}/env.sh` makes this shell speak to the lab.", *lines]) + (
        f"\nexport PATH={state.dir}/bin:$PATH\n"
    )


def _build_node(state: State, node: LabNode, row: InstanceType) -> None:
    home = Path(state.dir)
    if node is state.head:
        # The head has no GPU and no EFA; it is some small instance.
        row = row._replace(name="m7i.large", gpus=0, efa_devices=0)
    root = home / "nodes" / node.name / "root"
    mounts = {f"{home}/lustre": "lustre", f"{home}/nodes/{node.name}/nvme": "xfs"}
    hardware.build_root(root, row, node.name, node.instance_id, mounts)
    if row.gpus:
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (root / "usr/bin/nvidia-smi").symlink_to(home / "bin/nvidia-smi")
        (root / "dev").mkdir(exist_ok=True)
    for gpu in range(row.gpus):
        # Slurm takes character devices only for File=; 195 is NVIDIA's major number, and no driver is behind it here.
        for device in (root / f"dev/nvidia{gpu}", home / f"dev/nvidia{gpu}"):
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(195, gpu))


def _build_standins(state: State, say: Say) -> str:
    """Compile the stand-in libraries and return `built`, or why they are not."""
    name = "slurm_ext.lab.standins"
    if importlib.util.find_spec(name) is None:
        return "not part of this installation"
    if not shutil.which("gcc", path=CLEAN_PATH):
        return "not built: package gcc is missing"
    build = importlib.import_module(name).build
    say("compiling the stand-ins for libcuda, libnccl and libnvidia-ml")
    # Marked, so that `down` finds a compiler that outlives us; its temporary files go where `down` removes them.
    env = {**daemons.marked_environment(state), "TMPDIR": f"{state.dir}/lib"}
    build(f"{state.dir}/lib", f"{state.dir}/bin", env=env)
    return "built"
