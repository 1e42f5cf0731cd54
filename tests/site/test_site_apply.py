"""Putting an installation on disk and taking it out: nothing of others is overwritten, killed anywhere it goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_ext import files
from slurm_ext.config.model import Settings, Site
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.site import apply, install, manifest
from slurm_ext.site.manifest import Manifest
from slurm_ext.site.model import FOLDER, LINK, Item, Plan
from slurm_ext.site.plan import EMPTY_FRAGMENT


class Machine:
    """A folder that plays a machine, a plan for it, and what it looked like before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = str(folder / "var/state/install.json")
        (folder / "etc").mkdir(mode=0o755)
        (folder / "etc/fmslurm.conf").write_text("# nothing yet\n")
        self.settings = Settings(site=Site(state_dir=str(folder / "var/state"), share=str(folder / "share")))

    def plan(self, version: str = "1", hook: bytes = b"#!/bin/sh\n", **more: object) -> Plan:
        top = str(self.folder)
        items = [
            Item(f"{top}/opt/releases/{version}", FOLDER, mode=0o755, private=True),
            Item(f"{top}/opt/releases/{version}/a", content=b"release " + version.encode()),
            Item(f"{top}/opt/current", LINK, f"releases/{version}".encode()),
            Item(f"{top}/var/state", FOLDER, mode=0o755, private=True),
            Item(f"{top}/share/config/off", FOLDER, mode=0o755, private=True),
            Item(f"{top}/etc/hooks/prolog.d", FOLDER, mode=0o755, private=True),
            Item(f"{top}/etc/hooks/prolog.d/00-keep", content=b"exit 0\n", mode=0o755),
            Item(f"{top}/etc/hooks/prolog.d/50-fmslurm", content=hook, mode=0o755),
            Item(f"{top}/etc/seed.yaml", content=b"seed\n", seed=True),
            Item(f"{top}/etc/fmslurm.conf", content=b"Prolog=x\n", placeholder_only=True),
        ]
        bare = Plan(version, tuple(items), f"{top}/etc/fmslurm.conf", "Include", True)._replace(**more)  # type: ignore[arg-type]
        return apply.with_parents(bare, self.known())

    def known(self) -> Manifest:
        return manifest.load(self.manifest)

    def apply(self, plan: Plan) -> list[apply.Change]:
        assert apply.conflicts(plan, self.known()) == []
        return apply.apply(plan, self.known(), self.manifest)[1]

    def tree(self, *, but: tuple[str, ...] = ()) -> dict[str, tuple[int, str]]:
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if name not in but:
                text = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
                found[name] = (path.lstat().st_mode & 0o7777, text)
        return found

    def remove(self, *, included: bool = True) -> install.Removed:
        """Take everything out on a machine that has no controller to tell."""
        return install.uninstall(
            self.settings, self.known(), None, Nobody(), lambda _: None, included=included, settle_s=0
        )


class Nobody:
    def start(self, *, anew: bool) -> list[str]:
        return ["started anew" if anew else "started"]

    def stop(self) -> list[str]:
        return []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "machine"
    folder.mkdir(mode=0o755)
    return Machine(folder)


def test_what_is_put_there_is_what_the_plan_says_and_a_second_time_changes_nothing(machine: Machine) -> None:
    first = machine.apply(machine.plan())
    assert {change.what for change in first} <= {"create", "replace"}
    there = machine.tree()
    assert there["etc/hooks/prolog.d/50-fmslurm"] == (0o755, "#!/bin/sh\n")
    assert there["opt/current"][1] == "releases/1"
    assert there["etc/fmslurm.conf"] == (0o644, "Prolog=x\n")
    again = machine.apply(machine.plan())
    assert {change.what for change in again} == {"keep"}
    assert machine.tree() == there
    assert machine.known().complete


def test_the_manifest_says_what_it_left(machine: Machine) -> None:
    machine.apply(machine.plan())
    entries = machine.known().entries
    top = str(machine.folder)
    assert set(entries) == {item.path for item in machine.plan().items}
    assert entries[f"{top}/etc/fmslurm.conf"].made is False
    assert entries[f"{top}/etc/fmslurm.conf"].before == "# nothing yet\n"
    assert entries[f"{top}/opt/current"].made is True
    assert entries[f"{top}/etc/hooks/prolog.d/50-fmslurm"].mode == 0o755
    assert {entry.also for entry in entries.values()} == {""}


def test_taken_out_nothing_of_it_is_left(machine: Machine) -> None:
    before = machine.tree()
    machine.apply(machine.plan())
    assert machine.remove().left == ()
    assert machine.tree() == before


def test_a_fragment_that_we_made_stays_as_a_comment_while_slurm_includes_it(machine: Machine) -> None:
    fragment = machine.folder / "etc/fmslurm.conf"
    fragment.unlink()
    machine.apply(machine.plan())
    machine.remove(included=True)
    assert fragment.read_text() == EMPTY_FRAGMENT
    machine.apply(machine.plan())
    fragment_made_again = machine.known().entries[str(fragment)]
    assert fragment_made_again.before == EMPTY_FRAGMENT
    machine.remove(included=False)


def test_a_fragment_that_we_made_goes_where_nothing_includes_it(machine: Machine) -> None:
    fragment = machine.folder / "etc/fmslurm.conf"
    fragment.unlink()
    machine.apply(machine.plan())
    machine.remove(included=False)
    assert not fragment.exists()


def test_records_and_what_people_wrote_stay(machine: Machine) -> None:
    machine.apply(machine.plan())
    (machine.folder / "etc/seed.yaml").write_text("mine now\n")
    (machine.folder / "share/nodes").mkdir()
    (machine.folder / "share/nodes/events.jsonl").write_text("{}\n")
    left = machine.remove().left
    assert {os.path.relpath(item.path, machine.folder) for item in left} == {"etc/seed.yaml", "share"}
    assert (machine.folder / "etc/seed.yaml").read_text() == "mine now\n"
    assert (machine.folder / "share/nodes/events.jsonl").exists()


def test_a_seed_is_never_replaced(machine: Machine) -> None:
    (machine.folder / "etc/seed.yaml").write_text("there before\n")
    before = machine.tree()
    machine.apply(machine.plan())
    assert (machine.folder / "etc/seed.yaml").read_text() == "there before\n"
    machine.remove()
    assert machine.tree() == before


def stranger(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("somebody's\n")


def folder(path: Path) -> None:
    path.mkdir(parents=True)


def link(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("make", "name", "why"),
    [
        (stranger, "etc/hooks/prolog.d/50-fmslurm", "is there already and is not ours"),
        (folder, "etc/hooks/prolog.d/50-fmslurm", "expected a file, and a folder is there"),
        (link, "etc/hooks/prolog.d/50-fmslurm", "expected a file, and a link is there"),
        (stranger, "opt/current", "expected a link, and a file is there"),
        (link, "opt/current", "is there already and is not ours"),
        (stranger, "share/config/off", "expected a folder, and a file is there"),
    ],
)
def test_what_others_put_there_is_in_the_way(make, name: str, why: str, machine: Machine) -> None:
    make(machine.folder / name)
    (conflict,) = apply.conflicts(machine.plan(), machine.known())
    assert (conflict.path, conflict.why) == (str(machine.folder / name), why)
    if make is stranger and "expected" not in why:
        assert "-somebody's" in conflict.diff
        assert "+#!/bin/sh" in conflict.diff


def test_what_others_changed_is_in_the_way_and_stays_when_we_go(machine: Machine) -> None:
    machine.apply(machine.plan())
    hook = machine.folder / "etc/hooks/prolog.d/50-fmslurm"
    hook.write_text("#!/bin/sh\n# mine\n")
    (conflict,) = apply.conflicts(machine.plan(hook=b"#!/bin/sh\n# new\n"), machine.known())
    assert conflict.why == "was changed since install put it there"
    assert "-# mine" in conflict.diff
    left = machine.remove().left
    assert [item.path for item in left if item.why.startswith("was changed")] == [str(hook)]
    assert hook.read_text() == "#!/bin/sh\n# mine\n"
    assert set(machine.known().entries) >= {str(hook)}, "the manifest still knows what is left"
    hook.unlink()
    assert machine.remove().left == ()


def test_a_placeholder_with_settings_is_not_ours_to_fill(machine: Machine) -> None:
    (machine.folder / "etc/fmslurm.conf").write_text("# c\nProlog=/theirs\n")
    (conflict,) = apply.conflicts(machine.plan(), machine.known())
    assert conflict.why == "is there already and is not ours"


def test_a_changed_fragment_stops_uninstall_before_anything_else(machine: Machine) -> None:
    machine.apply(machine.plan())
    (machine.folder / "etc/fmslurm.conf").write_text("Prolog=x\nEpilog=mine\n")
    before = machine.tree()
    with pytest.raises(LackingError, match="was changed"):
        machine.remove()
    assert machine.tree() == before


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write_is_in_the_way(mode: int, machine: Machine) -> None:
    (machine.folder / "share/config/off").mkdir(parents=True)
    (machine.folder / "share/config/off").chmod(mode)
    (conflict,) = apply.conflicts(machine.plan(), machine.known())
    assert "root decides by what is there" in conflict.why


def test_a_wrong_mode_is_corrected(machine: Machine) -> None:
    machine.apply(machine.plan())
    hook = machine.folder / "etc/hooks/prolog.d/50-fmslurm"
    hook.chmod(0o600)
    assert [change for change in machine.apply(machine.plan()) if change.what != "keep"] == [
        apply.Change("replace", str(hook))
    ]
    assert hook.stat().st_mode & 0o7777 == 0o755


def test_an_upgrade_keeps_the_release_before_and_no_older_one(machine: Machine) -> None:
    before = machine.tree()
    for version in ("1", "2", "3", "3"):
        machine.apply(machine.plan(version))
    releases = machine.folder / "opt/releases"
    assert sorted(path.name for path in releases.iterdir()) == ["2", "3"]
    assert os.readlink(machine.folder / "opt/current") == "releases/3"
    assert machine.remove().left == ()
    assert machine.tree() == before


def test_an_old_release_goes_with_its_byte_code(machine: Machine) -> None:
    machine.apply(machine.plan("1"))
    cache = machine.folder / "opt/releases/1/__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_text("")
    machine.apply(machine.plan("2"))
    machine.apply(machine.plan("3"))
    assert not cache.exists()


class Killed(BaseException):
    """The process ends here."""


STEPS = ("mkdir", "chmod", "symlink", "replace", "unlink", "rmdir", "open", "fsync")


def killing(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the process end at its n-th step that touches the disk."""
    left = [after]

    def guard(name: str, real):
        def step(*args: object, **more: object) -> object:
            if name != "open" or (isinstance(args[1], int) and args[1] & os.O_CREAT):
                if left[0] == 0:
                    raise Killed(name)
                left[0] -= 1
            return real(*args, **more)

        return step

    for name in STEPS:
        monkeypatch.setattr(os, name, guard(name, getattr(os, name)))


def without_leftovers(tree: Mapping[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    # A temporary file whose writer was killed by the machine stays; here the writer itself still cleans up or cannot.
    return {
        name: entry
        for name, entry in tree.items()
        if not os.path.basename(name).startswith(".") and not name.endswith(".new")
    }


def test_killed_at_any_step_the_next_run_goes_on_and_uninstall_is_clean(tmp_path: Path) -> None:
    complete: dict[str, tuple[int, str]] | None = None
    for after in range(200):
        place = tmp_path / str(after)
        place.mkdir(mode=0o755)
        machine = Machine(place)
        before = machine.tree()
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, after)
            try:
                machine.apply(machine.plan())
                ended = True
            except Killed:
                ended = False
        machine.apply(machine.plan())
        there = without_leftovers(machine.tree(but=("var/state/install.json",)))
        assert complete in (None, there)
        complete = there
        machine.remove()
        assert set(without_leftovers(machine.tree())) - {"var", "var/state"} == set(before)
        if ended:
            assert after > 20
            return
    pytest.fail("it never ran to its end")


def test_uninstall_killed_at_any_step_goes_on(tmp_path: Path) -> None:
    for after in range(200):
        place = tmp_path / str(after)
        place.mkdir(mode=0o755)
        machine = Machine(place)
        before = machine.tree()
        machine.apply(machine.plan())
        with pytest.MonkeyPatch.context() as patch:
            killing(patch, after)
            try:
                machine.remove()
                ended = True
            except Killed:
                ended = False
        if not ended and machine.known().entries:
            machine.remove()
        assert set(without_leftovers(machine.tree())) - {"var", "var/state"} == set(before)
        if ended:
            assert after > 10
            return
    pytest.fail("it never ran to its end")


class Running:
    """A Slurm that goes by the fragment as it was at its last reconfigure, and daemons that fail to start when told to."""

    def __init__(self, fragment: str) -> None:
        self.fragment, self.lines, self.done, self.broken = fragment, "", "", False

    def config(self) -> Mapping[str, str]:
        return {"Prolog": f"{os.path.dirname(self.fragment)}/hooks/prolog.d/*"}

    def reconfigure(self) -> None:
        self.lines = Path(self.fragment).read_text()

    def start(self, *, anew: bool) -> list[str]:
        if self.broken:
            raise Killed
        self.done = "anew" if anew else "as they are"
        return []

    def stop(self) -> list[str]:
        return []


def test_ended_before_the_daemons_the_next_run_restarts_them_though_no_file_changes(machine: Machine) -> None:
    plan = machine.plan()
    running = Running(plan.fragment)

    def run() -> None:
        install.install(machine.settings, plan, machine.known(), running, running, lambda _: None)  # type: ignore[arg-type]

    running.broken = True
    with pytest.raises(Killed):
        run()
    running.broken, running.lines = False, ""
    run()
    assert (running.done, running.lines) == ("anew", "Prolog=x\n")
    run()
    assert running.done == "as they are"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 1}', '{"schema": 2, "entries": [], "version": "", "fragment": ""}']
)
def test_a_broken_manifest_is_said_and_not_guessed(content: str, machine: Machine) -> None:
    files.write_atomic(machine.manifest, content)
    with pytest.raises(FmslurmError, match="no manifest of ours"):
        machine.known()


def test_a_manifest_that_others_could_have_written_is_refused(machine: Machine) -> None:
    machine.apply(machine.plan())
    os.chmod(machine.manifest, 0o666)
    with pytest.raises(FmslurmError, match="0666"):
        machine.known()


def test_the_configuration_is_pushed_where_it_differs(machine: Machine) -> None:
    machine.apply(machine.plan())
    assert install.push(machine.settings) == 0, "settings that come from no file are nobody's"
    from_file = machine.settings._replace(source_hash="a" * 64)
    assert [install.push(from_file), install.push(from_file)] == [1, 1]
    assert install.push(from_file._replace(source_hash="b" * 64)) == 2
