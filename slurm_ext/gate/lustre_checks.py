"""What the probe of Lustre can find, as rows for people. No hook imports this."""

from __future__ import annotations

from slurm_ext.gate.probes import EPILOG, HEALTH, Check

_FILE = "a small file for each connection"
_LATER, _IDLE = (EPILOG, HEALTH), (HEALTH,)
_NIS = "LNet's list of interfaces"
_TOOL = "one lnetctl net show"

CHECKS: tuple[Check, ...] = (
    Check(
        "lustre.import-bad",
        "a connection of a Lustre in gate.lustre_mounts is evicted and has not come back, or is gone for 15 minutes",
        "evicted for 100 s: fail, drain; gone for 15 min: fail in the health check; else warn",
        cost=_FILE,
    ),
    Check("lustre.import-lost", "a connection that was lost less than 100 s ago", "warn", cost=_FILE),
    Check("lustre.import-recovery", "a server takes its clients in again", "warn", cost=_FILE),
    Check("lustre.import-unknown", "a state that no table of ours has", "unknown", cost=_FILE),
    Check("lustre.evicted", "an eviction while the job ran: what it wrote then may be lost", "warn", _LATER, _FILE),
    Check("lustre.evicted-old", "an eviction outside of the job", "none", _LATER, _FILE),
    Check("lustre.failover", "a target is served by another server than the first", "none", _LATER, _FILE),
    Check("lustre.inactive", "a target that is switched off on this client", "warn", cost=_FILE),
    Check("lustre.mgs-lost", "the management server does not answer", "warn", cost=_FILE),
    Check("lustre.lbug", "Lustre found a contradiction in itself", "fail, reboot", cost="health_check"),
    Check("lustre.not-healthy", "health_check says so", "health check: fail, drain; else warn", cost="health_check"),
    Check("lustre.unreadable", "connections, or another file of Lustre, that cannot be read", "unknown", cost=_FILE),
    Check("lustre.no-imports", "Lustre is mounted, and no connection is listed", "unknown", _LATER, _FILE),
    Check("lustre.not-on-efa", "Lustre is meant to go over EFA, and goes over another network", "warn", cost=_NIS),
    Check("lnet.no-network", "LNet has no network but the loopback", "health check: fail, drain; else warn", cost=_NIS),
    Check("lnet.down", "every interface of LNet is down", "health check: fail, drain; else warn", cost=_NIS),
    Check("lnet.interface-down", "one interface of LNet is down, others are up", "warn", cost=_NIS),
    Check("lnet.unknown-status", "an interface's word that no table of ours has", "unknown", cost=_NIS),
    Check("lnet.degraded", "an interface's health is below 1000: sends failed lately", "warn", _IDLE, _TOOL),
    Check("lnet.no-tool", "there is no lnetctl to ask", "none", _IDLE, _TOOL),
    Check("lnet.no-answer", "lnetctl failed, or took longer than 5 s", "unknown", _IDLE, _TOOL),
)
