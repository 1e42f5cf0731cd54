"""Captures of group `gpu`: nvidia-smi's answers in every form it has, by the rules of the live gate. Pure."""

from __future__ import annotations

from slurm_ext.aws import catalogue, gpu_types
from slurm_ext.captured import Case
from slurm_ext.gate import gpu_nvlink, gpu_rules, smi, smi_forms, smi_table
from slurm_ext.gate.model import Judged, Smi, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

_ANSWERS = ("smi_q_xml", "smi_q_text", "smi_csv", "smi_csv_second", "smi_csv_loaded", "stdout")

#: From this share of its time (per cent) a GPU is at work, and its link at full speed (generation falls at idle only).
_AT_WORK = 50

#: What a window's growth notes in passing says nothing that a capture's reader must know beside the state itself.
_NOTES = ("gpu.ecc-uncorrected-grew", "gpu.ecc-corrected-grew", "gpu.rows-remapped")
_CLUSTER = pattern(r"(?i:<clusterUuid>|ClusterUUID\s*: )\s*([0-9a-fA-F-]{36}|N/A)")
_ZEROS = pattern(r"[0-]{36}")
_QUERY = pattern(r"--query-gpu[= ](\S+)")
_NO_TOOL = ("command not found", "No such file or directory", "not found")


def judge(case: Case) -> list[Judged]:
    """Return what all answers of nvidia-smi in a folder say together."""
    return _Reader(case).judge()


class _Reader:
    """One folder with what its views share: how the run ended, the type's GPUs, the time since boot."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.command = str(case.context.get("command", ""))
        self.texts = self._texts()
        now, boot = case.time_s("now"), case.time_s("boot_time")
        self.boot_age_s = now - boot if now is not None and boot is not None else None
        told = case.context.get("expected_gpus")
        has = case.expected_gpus or gpu_types.gpu_count(case.instance_type)
        self.none_there = has == 0
        self.expected = told if isinstance(told, int) and not isinstance(told, bool) else has or None

    def _texts(self) -> dict[str, str]:
        """Return the texts, with stdout under the role that its command or its form gives it."""
        texts = dict(self.case.texts)
        out = texts.get("stdout", "")
        for word, role in (("topo", "topo"), ("nvlink", "nvlink")):
            if out.strip() and f" {word} " in f" {self.command} " and role not in texts:
                texts[role] = texts.pop("stdout")
        return texts

    def judge(self) -> list[Judged]:
        items: list[Judged] = []
        asked = False
        later = next((role for role in ("smi_csv_second", "smi_csv_loaded") if role in self.texts), "")
        second = _distinct(smi.parse_csv(self._csv(later))) if later else None
        printed = smi.parse_csv(self._csv("smi_csv")) if "smi_csv" in self.texts else None
        under_mig: set[int] = set()
        for role in self._roles():
            asked = True
            run = smi_forms.indexed(self._run(self._parse(role)), printed, expected_gpus=self.expected)
            under_mig |= {gpu.number for gpu in run.gpus if gpu.mig and gpu.number is not None}
            items += gpu_rules.judge(
                run,
                expected_gpus=self.expected,
                boot_age_s=self.boot_age_s,
                second=second if role == "smi_csv" else None,
            )
            if catalogue.has_shared_nvlink(self.case.instance_type):
                items += _domain(self._csv(role), run)
            if role.startswith("smi_csv"):
                items += _generation(self._csv(role), loaded=role == "smi_csv_loaded")
        if "stderr" in self.texts and not asked and not {"nvlink", "topo"} & set(self.texts):
            asked = True
            items += gpu_rules.judge(self._run(Smi(complete=False)), expected_gpus=self.expected)
        if "nvlink" in self.texts:
            asked = True
            items += self._nvlink(self.texts["nvlink"], under_mig)
        if "topo" in self.texts:
            asked = True
            items += gpu_nvlink.judge_topo(self.texts["topo"], gpu_type=self.case.gpu_type)
        if not asked:
            items.append(judged(UNKNOWN, "gpu.no-probe", "node", "none", "no file of a kind that can be judged"))
        return self._none_expected(items)

    def _roles(self) -> list[str]:
        """Return the roles to read; the default table tells nothing that the others do not tell better."""
        roles = [role for role in _ANSWERS if role in self.texts]
        return roles or (["smi_table"] if "smi_table" in self.texts else [])

    def _csv(self, role: str) -> str:
        """Return a CSV with its header: `--format=noheader` leaves it to the command to tell the columns."""
        text = self._whole(self.texts[role])
        asked = _QUERY.search(self.command)
        first = text.lstrip().partition("\n")[0]
        if asked is None or not text.strip() or {"index", "pci.bus_id", "gpu_bus_id"} & {*_names(first)}:
            return text
        names = asked[1].strip("'\"").split(",")
        return f"{', '.join(names)}\n{text.lstrip()}" if first.count(",") + 1 == len(names) > 1 else text

    def _whole(self, text: str) -> str:
        """Return a CSV with the end of its last line, which those who copy an answer lose; a run that was ended keeps its cut."""
        lines = text.rstrip().splitlines()
        even = len(lines) > 1 and (lines[-1].count(",") == lines[0].count(",") or lines[-1].startswith("WARNING"))
        return f"{text.rstrip()}\n" if even and not self.case.context.get("timed_out") else text

    def _parse(self, role: str) -> Smi:
        """Return the answer in a text whose form is not told."""
        text = self.texts[role]
        head = text.lstrip()[:200]
        if head.startswith("<"):
            return smi_forms.parse_xml(text)
        if "NVSMI LOG" in text[:400] or "Attached GPUs" in text[:2000]:
            return smi_forms.parse_text(text)
        if smi_table.is_table(text[:2000]) or role == "smi_table":
            return smi_table.parse(text)
        if head.startswith("GPU ") and (listed := smi_table.parse_list(text)) is not None:
            return listed
        return _distinct(smi.parse_csv(self._csv(role))) if text.strip() else Smi(complete=False)

    def _run(self, parsed: Smi) -> Smi:
        """Return the parsed output with how its run ended, and with what stood in the other stream."""
        context = self.case.context
        code = context.get("exit_code", 0)
        elapsed = context.get("elapsed_s")
        return parsed._replace(
            exit_code=code if isinstance(code, int) else None,
            timed_out=bool(context.get("timed_out", False)),
            elapsed_s=float(elapsed) if isinstance(elapsed, int | float) else 0.0,
            said="\n".join(part for part in (parsed.said, self.case.texts.get("stderr", "")) if part.strip()),
        )

    def _nvlink(self, text: str, under_mig: set[int]) -> list[Judged]:
        errors = gpu_nvlink.judge_errors(text)
        if errors or ("Errors:" in text and "GB/s" not in text):
            return errors
        return gpu_nvlink.judge_nvlink(
            text.rstrip() + text[len(text.rstrip("\r\n")) :],
            gpu_type=self.case.gpu_type,
            under_mig=under_mig,
            boot_age_s=self.boot_age_s,
        )

    def _none_expected(self, items: list[Judged]) -> list[Judged]:
        """Return the findings, none of them a fault where a type without GPUs has no nvidia-smi and no driver."""
        absent = ("gpu.driver-not-loaded", "gpu.missing", "gpu.smi-failed")
        if self.none_there and items and all(item.finding.id in absent and item.verdict != FAIL for item in items):
            said = " ".join(text for item in items for text in item.finding.evidence)
            failed = any(item.finding.id == "gpu.smi-failed" for item in items)
            if not failed or any(words in said for words in _NO_TOOL):
                return [judged(PASS, "gpu.none-expected", "node", "none", f"{self.case.instance_type} has no GPU")]
        held = {item.finding.target for item in items if item.finding.id in ("gpu.hw-power-brake", "gpu.hw-thermal")}
        items = [
            item
            for item in items
            if item.finding.id not in _NOTES
            and (item.finding.id != "gpu.slowed-now" or item.finding.target not in held)
        ]
        kept: dict[tuple[str, str], Judged] = {}
        for item in items:  # two views of one run say the same thing twice
            kept.setdefault((item.finding.id, item.finding.target), item)
        return list(kept.values())


def _domain(text: str, run: Smi) -> list[Judged]:
    """Return the GPUs that have registered with the fabric and are in no NVLink domain (NVL72: the UUID is all zeros).

    Outside a rack of such machines zeros are normal; under an own fabric state that is not Completed they come later.
    """
    lines = text.splitlines()
    names = _names(lines[0]) if lines else []
    if "fabric.clusterUuid" in names:
        at = names.index("fabric.clusterUuid")
        told = [cells[at].strip() for line in lines[1:] if len(cells := line.split(",")) == len(names)]
    else:
        told = [found[1] for found in _CLUSTER.finditer(text)]
    if len(told) != len(run.gpus):
        return []
    alone = [
        gpu.target
        for gpu, uuid in zip(run.gpus, told, strict=True)
        if _ZEROS.fullmatch(uuid) and gpu.fabric_state.lower() == "completed"
    ]
    line = "registered with the fabric, and in no NVLink domain: the cluster's UUID is all zeros"
    targets = ["node"] if len(alone) == len(told) and alone else alone
    return [judged(FAIL, "gpu.fabric-no-domain", target, "drain", line) for target in targets]


def _distinct(run: Smi) -> Smi:
    """Return the answer without UUIDs where they name no single GPU: captures may have replaced them all by one."""
    if len({gpu.uuid for gpu in run.gpus}) == len(run.gpus):
        return run
    return run._replace(gpus=tuple(gpu._replace(uuid="") for gpu in run.gpus))


def _generation(text: str, *, loaded: bool) -> list[Judged]:
    """Return the GPUs at work whose PCIe link runs at a lower generation than both ends have."""
    lines = text.splitlines()
    names = _names(lines[0]) if lines else []
    items = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        busy = smi.count(row.get("utilization.gpu"))
        now = smi.count(row.get("pcie.link.gen.current") or row.get("pcie.link.gen.gpucurrent"))
        ends = [smi.count(row.get(f"pcie.link.gen.{end}")) for end in ("max", "gpumax", "hostmax")]
        most = min((end for end in ends if end), default=None)
        if now and most and now < most and (loaded or (busy is not None and busy >= _AT_WORK)):
            number, pci = smi.count(row.get("index")), smi.pci_address(row.get("pci.bus_id", ""))
            target = f"gpu:{number}" if number is not None else f"gpu@{pci}"
            words = f"PCIe generation {now} of {most} while it is at work"
            items.append(judged(WARN, "gpu.pcie-generation", target, "warn", words))
    return items


def _names(line: str) -> list[str]:
    return [name.split("[", 1)[0].strip() for name in line.split(",")]
