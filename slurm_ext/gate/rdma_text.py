"""EFA devices in what fi_info, rdma, ibv_devinfo and lspci print, in every form of each. Pure parsers, never raise.

Sources: libfabric util/info.c and man/fi_info.1 (short, -v, one block for each of an endpoint's ways into a device),
iproute2 rdma/link.c (text of two ages, -j), rdma-core's ibv_devinfo(1), pciutils lspci(8) (plain, -D, -n, -nn, -k, -vmm).
"""

from __future__ import annotations

import json

from slurm_ext.gate.efa_facts import is_efa_name
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

_GETINFO = pattern(r"fi_getinfo(?:\(\))?: (?:ret=)?-?(\d+)(?: \(([^)]*)\))?")
_FIELD = pattern(r"\s*([\w ]+?): *(.*)")
_SUFFIX = pattern(r"(.+?)-(?:rdm|dgrm|direct)")
_LINK = pattern(
    r"(?:link |\d+/\d+: )?([\w.-]+)/(\d+):? (?:subnet_prefix \S+ )?(?:lid \S+ )?(?:sm_lid \S+ )?(?:lmc \S+ )?"
    r"state (\S+)(?: physical_state (\S+))?.*"
)
_DEVICE = pattern(r"\d{1,6}: ([\w.-]+): node_type ")
_SLOT = pattern(r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) (.+)")
_REVISION_GONE = pattern(r"\(rev ff\)")


class Entry(NamedTuple):
    """One block of fi_info. `device` is the domain without the way into it; `up` is None where the link is not told."""

    provider: str
    device: str
    kind: str = ""
    up: bool | None = None


class FiInfo(NamedTuple):
    """One run of fi_info. `error` is the number that fi_getinfo ended with, 61 being ENODATA: nothing fits."""

    entries: tuple[Entry, ...] = ()
    error: int | None = None
    complete: bool = True
    is_fi_info: bool = False


class Port(NamedTuple):
    """One RDMA port as a tool shows it; words in upper case."""

    device: str
    state: str
    physical: str = ""


class Function(NamedTuple):
    """One EFA function on the PCI bus. `driver` is None where drivers were not asked for."""

    address: str
    gone: bool = False
    driver: str | None = None


def parse_fi_info(text: str) -> FiInfo:
    """Return the blocks of fi_info's output, short or -v, or its error."""
    if error := _GETINFO.search(text):
        return FiInfo(error=int(error[1]), is_fi_info=True)
    blocks: list[dict[str, str]] = []
    section = ""
    for line in text.splitlines():
        found = _FIELD.fullmatch(line.rstrip())
        if found is None:
            continue
        key, value = found[1].strip(), found[2].strip()
        if key == "fi_info" or (key == "provider" and not line[:1].isspace()):
            blocks.append({})
            section = ""
        if not blocks:
            continue
        if not value:
            section = key
        blocks[-1].setdefault(f"{section}.{key}" if line[:1].isspace() and section else key, value)
        blocks[-1].setdefault(key, value)
    entries = [entry for block in blocks if (entry := _entry(block)) is not None]
    last = blocks[-1] if blocks else {}
    # The short form ends with the protocol; -v ends with the NIC or the fabric's version.
    whole = not blocks or any(key in last for key in ("protocol", "api_version", "fi_link_attr", "prov_version", "nic"))
    # A block that was cut may name its device already: it is there. One that names none tells nothing.
    if "protocol" in last and not text.endswith("\n") and last["protocol"] not in ("FI_PROTO_EFA", "FI_PROTO_RXD"):
        whole = False
    return FiInfo(tuple(entries), None, whole, bool(blocks))


def _entry(block: dict[str, str]) -> Entry | None:
    provider = block.get("provider") or block.get("fi_fabric_attr.prov_name") or block.get("prov_name") or ""
    domain = block.get("fi_domain_attr.name") or block.get("domain") or ""
    if not provider or not domain or domain.startswith("0x"):
        return None
    found = _SUFFIX.fullmatch(domain)
    link = block.get("fi_link_attr.state", "")
    up = True if link == "FI_LINK_UP" else False if link == "FI_LINK_DOWN" else None
    return Entry(provider.partition(";")[0], found[1] if found else domain, block.get("type", ""), up)


def parse_rdma(text: str) -> tuple[list[Port], bool] | None:
    """Return the ports that `rdma link` or `ibv_devinfo` shows and whether all could be read; None for another text."""
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            rows = json.loads(stripped)
        except (ValueError, RecursionError):
            return [], False
        ports = [
            Port(str(row["ifname"]), str(row.get("state", "")).upper(), str(row.get("physical_state", "")).upper())
            for row in rows
            if isinstance(row, dict) and row.get("ifname")
        ]
        return ports, len(ports) == len(rows)
    if "hca_id:" in text:
        return _devinfo(text)
    found, whole = [], True
    for line in stripped.splitlines():
        if row := _LINK.fullmatch(line.strip()):
            found.append(Port(row[1], row[3].upper(), (row[4] or "").upper()))
        elif line.strip():
            whole = False
    if not found and not whole:
        return None
    return found, whole and (not found or "physical_state" in stripped.splitlines()[-1])


def parse_devices(text: str) -> list[str] | None:
    """Return the devices that `rdma dev` (text or JSON) or `ibv_devices` lists, which tell no ports; None for another text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].split() == ["device", "node", "GUID"]:
        return [line.split()[0] for line in lines[1:] if not line.startswith("---")]
    found = [_DEVICE.match(line) for line in lines]
    return [row[1] for row in found if row] if found and all(found) else None


def _devinfo(text: str) -> tuple[list[Port], bool]:
    ports: list[Port] = []
    name, seen = "", True
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        if key == "hca_id":
            name, seen = value.strip(), False
        elif key == "state" and name:
            ports.append(Port(name, value.split()[0].removeprefix("PORT_").upper() if value.split() else ""))
            seen = True
    return ports, seen


def parse_lspci(text: str) -> list[Function] | None:
    """Return the EFA functions that lspci lists, None where the text is not lspci's."""
    if "Slot:" in text:
        return _lspci_records(text)
    found: list[Function] = []
    current, any_line = False, False
    asked = "Kernel driver in use:" in text or "Kernel modules:" in text
    for line in text.splitlines():
        if row := _SLOT.fullmatch(line.rstrip()):
            any_line = True
            current = _is_efa_line(row[2])
            if current:
                gone = bool(_REVISION_GONE.search(row[2]))
                found.append(Function(_full(row[1]), gone, "" if asked else None))
        elif current and "Kernel driver in use:" in line:
            found[-1] = found[-1]._replace(driver=line.partition(":")[2].strip())
        elif current and "Unknown header type 7f" in line:
            found[-1] = found[-1]._replace(gone=True)
    return found if any_line or not text.strip() else None


def _lspci_records(text: str) -> list[Function]:
    asked = "\nDriver:" in text
    found = []
    for record in text.replace("\r", "").split("\n\n"):
        fields = dict(
            (key.strip(), value.strip()) for key, colon, value in (line.partition(":") for line in record.splitlines())
        )
        if "Slot" in fields and _is_efa_line(f"{fields.get('Vendor', '')} {fields.get('Device', '')}"):
            driver = fields.get("Driver", "") if asked else None
            found.append(Function(_full(fields["Slot"]), fields.get("Rev") == "ff", driver))
    return found


def _is_efa_line(text: str) -> bool:
    lowered = text.lower()
    return (
        "elastic fabric adapter" in lowered
        or "1d0f:efa" in lowered
        or ("amazon" in lowered and ("device efa" in lowered or "[efa" in lowered))
    )


def _full(address: str) -> str:
    """Return an address with its domain, lower case."""
    lowered = address.lower()
    return lowered if lowered.count(":") == 2 else f"0000:{lowered}"


def efa_ports(ports: list[Port]) -> list[Port]:
    """Return the ports of EFA devices."""
    return [port for port in ports if is_efa_name(port.device)]
