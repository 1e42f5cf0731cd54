"""The settings of one site, with first-install defaults: twelve sections, each a NamedTuple, units in the names.

Standard library only, no YAML: hooks read these from the pushed JSON snapshot. `fmslurm.yaml` is parsed in
`config/yaml_file.py`, checked against the very annotations below, and explained key by key in `etc/fmslurm.yaml`.
"""

import os

from slurm_ext.typed import NamedTuple

#: The ladder of one room: nothing, decide and write down, also tell people, also act.
MODES = ("off", "shadow", "warn", "enforce")

#: Rooms that have a mode and that `fmslurm off ROOM` can stop.
ROOMS = ("gate", "burnin", "resume", "staging", "topology")


class Site(NamedTuple):
    """Where things are. `%n` in a path stands for the node's name, as in slurm.conf's SlurmdSpoolDir."""

    type: str = "auto"  # auto, plain, parallelcluster, pcs, hyperpod, lab
    cluster: str = ""  # Slurm's ClusterName; empty: ask Slurm
    backend: str = "auto"  # auto, cli, pyslurm, slurmrestd
    share: str = ""  # root-owned folder that every node sees; empty: none
    state_dir: str = "/var/lib/fmslurm"
    run_dir: str = "/run/fmslurm"
    log_dir: str = "/var/log/fmslurm"
    prefix: str = "/opt/fmslurm"  # releases/VERSION and the link `current`
    root: str = "/"  # under which hardware facts are read (/proc, /sys, /dev, kernel log); the lab points it elsewhere
    slurm_bin: str = ""  # folder of scontrol and friends; empty: the fixed PATH
    slurm_conf: str = ""  # SLURM_CONF for our calls; empty: Slurm's own default
    hook_dir: str = ""  # folder that holds prolog.d and epilog.d; empty: the site's own
    python: str = ""  # interpreter of the hooks; empty: prefix/current/venv/bin/python, then python3
    munge_socket: str = ""  # empty: munge's own default
    instance_type: str = "auto"  # auto: IMDS or DMI


class Mode(NamedTuple):
    """Which rung of MODES each room stands on, and where: partitions and canary hostlists narrow `enforce`."""

    gate: str = "shadow"
    burnin: str = "off"
    resume: str = "shadow"
    staging: str = "off"
    topology: str = "shadow"
    partitions: tuple[str, ...] = ()  # empty: all
    canary: str = ""  # hostlist; empty: all


class Gate(NamedTuple):
    """The local half of the gate."""

    deadline_s: float = 10.0
    on_unknown: str = "pass"  # pass, requeue
    disabled: tuple[str, ...] = ()  # finding ids or id prefixes that are ignored
    nvme_dirs: tuple[str, ...] = ()  # scratch folders that must be writable and not full
    lustre_mounts: tuple[str, ...] = ()  # mount points that must answer
    min_free_percent: float = 5.0
    dcgm_job_mapping_dir: str = ""  # where dcgm-exporter reads which job has which GPU; empty: written nowhere
    slow_check: str = "off"  # off, dcgm-r1, dcgm-r2: DCGM's diagnostic on idle nodes, r2 only on those that are out
    slow_every_h: float = 24.0
    efa_loopback: bool = False  # traffic of each EFA device with itself, on idle nodes, every slow_every_h
    dcgm_health: str = (
        "read"  # off; read: what DCGM watches; watch: and let it watch everything where it watches nothing
    )
    container_runtimes: tuple[str, ...] = ()  # which must answer; empty: daemons that run


class Burnin(NamedTuple):
    """The all-reduce over the job's nodes. Floors are bus bandwidths in GB/s; 0 takes the catalogue's figure."""

    min_nodes: int = 2
    whole_nodes_only: bool = True
    batch_only: bool = True
    min_time_limit_min: int = 15
    reuse_pass_h: float = 6.0
    deadline_s: float = 90.0
    rendezvous_s: float = 30.0
    late_s: float = 120.0  # how long those that passed keep a witness for nodes whose prolog comes late
    on_unknown: str = "requeue"  # pass, requeue, hold
    on_absent: str = "requeue"  # without the nodes that never came; pass, hold
    on_fabric: str = "hold"  # more than a third suspect; pass, requeue
    user_may: tuple[str, ...] = ("normal", "strict")
    message_bytes: int = 1 << 30
    iterations: int = 20
    sustain_s: float = 4.0  # of traffic without a pause, behind the timed all-reduces
    strict_sustain_s: float = 60.0
    strict_partitions: tuple[str, ...] = ()
    group_nodes: int = 64  # larger jobs are tested in groups of so many, by leaf switch, then one node of each
    relative_percent: float = 15.0  # below the fleet's own median
    relative_act: str = "flag"  # flag, drain
    history_d: float = 30.0
    nccl_check: bool = True  # report where NCCL inside a job differs from what was proven
    floor_busbw_gbs: float = 0.0
    pair_floor_busbw_gbs: float = 0.0
    nccl_library: str = ""
    cuda_library: str = ""
    transport: str = "efa"  # efa, or socket for clusters without EFA (and the lab)
    port: int = 0  # of the leader; 0: derived from the job id within port_range
    port_range: tuple[int, ...] = (42000, 42999)
    addresses: str = ""  # file of `name address` lines; empty: the resolver


class Drain(NamedTuple):
    """How much fmslurm may take away: the larger of `max_per_hour` and `max_percent_per_hour` of the nodes, per hour."""

    max_per_hour: int = 2
    max_percent_per_hour: float = 1.0
    first_boot_budget: int = 2
    when_open: str = "requeue"  # requeue, pass, hold, cancel
    reboot_first: bool = True
    expires_d: float = 7.0
    undrain: str = "on_proof"  # on_proof, never


class Resume(NamedTuple):
    """Who is requeued and how often: budgets are attempts per cause class."""

    opt_in: bool = True
    infra: int = 5
    unknown: int = 1
    user: int = 0
    same_root: int = 3
    exclude_max_percent: float = 10.0
    defer_to_hyperpod: bool = True
    poll_s: float = 2.0
    epilog_hold_s: float = 10.0


class Tier(NamedTuple):
    """One place where checkpoints lie. `url` is a folder, or s3://bucket/prefix."""

    name: str = ""
    kind: str = ""  # nvme, lustre, s3
    url: str = ""
    endpoint: str = ""  # of an S3 server that is not AWS
    credentials_file: str = ""  # root-only file in AWS's shared-credentials form; empty: the instance's role


class Staging(NamedTuple):
    """Where checkpoints go. Tiers are in order of nearness."""

    tiers: tuple[Tier, ...] = ()
    on_full: tuple[str, ...] = ("lustre", "skip")
    hold_node_max_min: float = 15.0
    bandwidth_percent: float = 30.0
    retention: str = "keep_all"
    engine: str = "boto3"


class Topology(NamedTuple):
    """Whether and how often topology files may change."""

    apply: str = "never"  # never, node-update, reconfigure, restart
    min_interval_min: float = 30.0
    max_switches: int = 1000
    format: str = "auto"  # auto (as Slurm reads), tree, block, yaml
    block_size: int = 0  # nodes; 0: the size of the NVLink domains
    capacity_blocks: bool = False  # take a capacity block for one NVLink domain where nobody says better
    watch_interval_min: float = 5.0
    restart_command: tuple[str, ...] = ("systemctl", "restart", "slurmctld")
    gres: str = "report_only"  # report_only, write
    source: str = "ec2"  # ec2, file, cluster, auto
    source_file: str = ""  # places of the site's own, or a recorded DescribeInstanceTopology answer, for source file
    nodes_file: str = ""  # CSV with node, instance_id and, where known, instance_type, reservation_id, address, port
    node_table: str = ""  # ParallelCluster's DynamoDB table; empty: as the head node's own file says
    instance_tag: str = ""  # KEY=VALUE that this cluster's instances carry; empty: ParallelCluster's own tag


class Aws(NamedTuple):
    """Rights come from the instance's role alone."""

    region: str = ""
    scheduled_events: bool = True
    ec2_endpoint: str = ""
    dynamodb_endpoint: str = ""
    s3_endpoint: str = ""


class Target(NamedTuple):
    """One place that notices go to. Exactly one of mail, webhook, webhook_file, sns and command is set."""

    name: str = ""  # how `fmslurm notify` calls it; empty: made of the address (targets.name_of)
    mail: str = ""
    webhook: str = ""  # a secret: whoever has it may post
    webhook_file: str = ""  # root-only file that holds the URL
    sns: str = ""  # ARN of a topic
    command: str = ""  # program of root's that reads the notice as JSON
    severity: str = "notice"  # the least that it gets: notice (everything), page
    format: str = "auto"  # of a webhook's message


class Notify(NamedTuple):
    """Whom to tell. Snapshots carry no targets: they may hold secrets, and only the controller sends."""

    targets: tuple[Target, ...] = ()
    users: bool = False
    subject: str = ""  # string.Template over targets.FIELDS; empty: the built-in words
    text: str = ""


class Observe(NamedTuple):
    """What is kept and shown."""

    retention_d: float = 30.0
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 9817
    mask: bool = True


class Access(NamedTuple):
    """Who may do what."""

    admins: tuple[str, ...] = ("root",)
    users: str = "own_jobs"  # own_jobs, all_jobs, none


class Settings(NamedTuple):
    """All sections, and where they come from: `source_hash` is the SHA-256 of the YAML, `generation` counts pushes."""

    site: Site = Site()
    mode: Mode = Mode()
    gate: Gate = Gate()
    burnin: Burnin = Burnin()
    drain: Drain = Drain()
    resume: Resume = Resume()
    staging: Staging = Staging()
    topology: Topology = Topology()
    aws: Aws = Aws()
    notify: Notify = Notify()
    observe: Observe = Observe()
    access: Access = Access()
    source_hash: str = ""
    generation: int = 0


#: Keys that take one of a few words: (section, key) -> the words.
CHOICES: dict[tuple[str, str], tuple[str, ...]] = {
    ("site", "type"): ("auto", "plain", "parallelcluster", "pcs", "hyperpod", "lab"),
    ("site", "backend"): ("auto", "cli", "pyslurm", "slurmrestd"),
    **{("mode", room): MODES for room in ROOMS},
    ("gate", "on_unknown"): ("pass", "requeue"),
    ("gate", "slow_check"): ("off", "dcgm-r1", "dcgm-r2"),
    ("gate", "dcgm_health"): ("off", "read", "watch"),
    ("gate", "container_runtimes"): ("docker", "containerd", "enroot", "apptainer"),
    ("burnin", "on_unknown"): ("pass", "requeue", "hold"),
    ("burnin", "on_absent"): ("pass", "requeue", "hold"),
    ("burnin", "on_fabric"): ("pass", "requeue", "hold"),
    ("burnin", "relative_act"): ("flag", "drain"),
    ("burnin", "user_may"): ("strict", "normal", "skip"),
    ("burnin", "transport"): ("efa", "socket"),
    ("drain", "when_open"): ("requeue", "pass", "hold", "cancel"),
    ("drain", "undrain"): ("on_proof", "never"),
    ("staging", "on_full"): ("lustre", "s3", "skip", "block"),
    ("staging", "engine"): ("boto3", "direct"),
    ("staging", "retention"): ("keep_all",),
    ("tiers", "kind"): ("nvme", "lustre", "s3"),
    ("targets", "severity"): ("notice", "page"),
    ("targets", "format"): ("auto", "slack", "teams", "json"),
    ("topology", "apply"): ("never", "node-update", "reconfigure", "restart"),
    ("topology", "format"): ("auto", "tree", "block", "yaml"),
    ("topology", "gres"): ("report_only", "write"),
    ("topology", "source"): ("ec2", "file", "cluster", "auto"),
    ("access", "users"): ("own_jobs", "all_jobs", "none"),
}


def at_node(path: str, node: str) -> str:
    """Return the path with `%n` replaced by the node's name, Slurm's own convention for several slurmd on a machine."""
    return path.replace("%n", node)


def machine_name() -> str:
    """Return this machine's short host name: its name in Slurm, where no slurmd says another."""
    return os.uname().nodename.split(".")[0]
