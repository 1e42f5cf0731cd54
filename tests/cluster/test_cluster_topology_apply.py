"""`fmslurm topology apply` and `watch` against a real slurmctld: the least that does, read back, rolled back, nothing lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest
from bare_controller import BareController
from topology_site import FMSLURM, TopologySite, sets

from slurm_ext.config.snapshot import OFF_FOLDER
from slurm_ext.slurm.conf_file import OURS, state_of
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import has

TREE = "TopologyPlugin=topology/tree"
THEIRS = "SwitchName=theirs Nodes=n[1-8]\n"
NODES = tuple(f"n{number}" for number in range(1, 9))


@pytest.fixture(scope="module")
def controller(controller: BareController) -> Iterator[BareController]:
    yield controller
    TopologySite(controller).clear()  # also after a test that failed


@pytest.fixture
def site(controller: BareController) -> Iterator[TopologySite]:
    """Eight nodes below two leaves; Slurm has a tree that somebody else wrote, with all nodes below one."""
    controller.write({"topology.conf": THEIRS}, "n[1-8]", more=TREE)
    made = TopologySite(controller)
    made.put("spine/left", *NODES[:4])
    made.put("spine/right", *NODES[4:])
    with made.daemon():
        yield made
    made.clear()


HALVES = sets(NODES[:4], NODES[4:])
MOVED = sets(NODES[:3], NODES[3:])


def test_a_foreign_file_is_refused_and_then_kept(site: TopologySite) -> None:
    said = site.apply(code=1)
    assert "was not written by fmslurm" in said
    assert "--force" in said
    assert site.conf.read_text() == THEIRS
    assert site.reconfigures() == 0
    site.apply("--force", "--reason", "first map")
    assert site.together() == HALVES
    assert state_of(site.conf.read_text()) == OURS
    (copy,) = site.conf.parent.glob("topology.conf.before-fmslurm-*")
    assert copy.read_text() == THEIRS
    phases = [event["phase"] for event in site.events("topology.change")]
    assert phases == ["intent", "done"]
    assert site.events("topology.change")[0]["data"]["why"] == "first map"


def test_nothing_is_done_twice(site: TopologySite) -> None:
    site.apply("--force")
    content, before = site.conf.read_bytes(), site.reconfigures()
    site.places = dict(reversed(site.places.items()))
    assert "nothing to do" in site.apply("--now")
    assert site.conf.read_bytes() == content
    assert site.reconfigures() == before


def test_a_dry_run_shows_the_change_and_makes_none(site: TopologySite) -> None:
    said = site.apply("--dry-run", "--force")
    assert "-SwitchName=theirs" in said
    assert "reconfigure: 8 nodes do not sit where Slurm has them" in said
    plan = json.loads(site.run("apply", "--dry-run", "--force", "--json").stdout)
    assert (plan["level"], plan["writes"], plan["dry_run"]) == ("reconfigure", True, True)
    assert {move["node"] for move in plan["moves"]["default"]} == set(NODES)
    assert site.conf.read_text() == THEIRS
    assert not (site.folder / "log" / "events.jsonl").exists()


def test_the_least_that_does(site: TopologySite, version: Version) -> None:
    site.apply("--force")
    before = site.reconfigures()
    site.put("spine/right", "n4")
    said = site.apply("--now")
    assert site.together() == MOVED
    assert "n4 moved: " in said
    if has(version, "node-topology-update"):
        assert "node-update done" in said
        assert site.reconfigures() == before
    else:
        assert "reconfigure done" in said
    site.stop()
    site.start()
    assert site.together() == MOVED
    site.put("spine/left", "n4")  # a string of Slurm's must not outlive a newer file
    site.put("other/third", "n1")
    site.apply("--now")
    assert site.together() == sets(NODES[1:4], NODES[4:], NODES[:1])
    assert "all 8 nodes sit" in site.run("check").stdout


def test_one_reconfigure_in_an_interval(site: TopologySite) -> None:
    site.apply("--force")
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    said = site.apply(code=1)
    assert "topology.min_interval_min" in said
    assert site.together() == HALVES
    site.apply("--now")
    assert site.together() == sets(NODES[:2], NODES[2:])


def test_no_more_than_is_allowed(site: TopologySite) -> None:
    for allowed, words in (
        ("never", "topology.apply is never"),
        ("node-update", "no more than node-update is allowed"),
    ):
        site.settings["topology"]["apply"] = allowed
        assert words in site.apply("--force", code=1)
    assert site.conf.read_text() == THEIRS
    site.apply("--force", "--by", "reconfigure")
    assert site.together() == HALVES


@pytest.mark.parametrize("edit", ["a node", "a comment"])
def test_a_change_by_hand_is_not_lost(site: TopologySite, edit: str) -> None:
    site.apply("--force")
    text = site.conf.read_text()
    edited = text.replace("n[1-4]", "n[1-2]").replace("n[5-8]", "n[3-8]") if edit == "a node" else text + "# mine\n"
    site.conf.write_text(edited)
    site.put("spine/right", "n4")
    said = site.apply("--now", code=1)
    assert "changed by hand" in said
    assert site.conf.read_text() == edited
    site.apply("--now", "--force")
    assert any(path.read_text() == edited for path in site.conf.parent.glob("topology.conf.before-fmslurm-*"))
    assert site.together() == MOVED


def test_slurmctld_down_changes_nothing(site: TopologySite) -> None:
    site.stop()
    said = site.apply("--force", code=3)
    assert "slurm" in said.lower()
    assert site.conf.read_text() == THEIRS
    site.run("check", code=3)
    assert "not looked" in site.run("watch", "--once", code=1).stdout


def test_a_folder_that_takes_nothing_leaves_all_as_it_was(site: TopologySite) -> None:
    folder = str(site.conf.parent)
    subprocess.run(["mount", "--bind", folder, folder], check=True, timeout=60)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True, timeout=60)
        said = site.apply("--force", code=3)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=60)
    assert "Read-only file system" in said
    assert site.conf.read_text() == THEIRS
    assert site.reconfigures() == 0
    assert not (site.folder / "log" / "events.jsonl").exists()  # nothing was begun
    site.apply("--force")
    assert site.together() == HALVES


def spoils(site: TopologySite, *, times: int = 1) -> None:
    """Let the file be spoilt between our write and slurmctld's read: what the linter cannot foresee."""
    count = site.folder / "spoilt"
    count.write_text("")
    site.script(
        "scontrol",
        f'if [ "$1" = reconfigure ] && [ "$(wc -l <{count})" -lt {times} ]; then',
        f"  echo >>{count}",
        f"  echo 'SwitchName=top Switches=nosuch' >{site.conf}",
        "fi",
        f'exec {shutil.which("scontrol")} "$@"',
    )


def test_what_slurm_refuses_is_put_back(site: TopologySite, version: Version) -> None:
    site.apply("--force")
    good = site.conf.read_text()
    spoils(site)
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    said = site.apply("--now", code=1)
    assert "all is as it was before" in said
    assert site.is_up()
    assert site.together() == HALVES
    assert site.conf.read_text() == good
    assert [event["phase"] for event in site.events("topology.rolled-back")] == ["done"]
    said = site.apply("--by", "restart", code=1)
    assert "--now does it now" in said
    site.apply("--now")
    assert site.together() == sets(NODES[:2], NODES[2:])


def test_a_crash_in_the_middle_is_made_good(site: TopologySite) -> None:
    site.apply("--force")
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    real = shutil.which("scontrol")
    killed = site.folder / "killed"
    site.script(
        "scontrol",
        f'if [ "$1" = reconfigure ] && [ ! -e {killed} ]; then touch {killed}; kill -KILL $PPID; exit 1; fi',
        f'exec {real} "$@"',
    )
    assert site.run("apply", "--now", code=None).returncode == -signal.SIGKILL
    assert site.together() == HALVES
    said = site.apply("--now")
    assert "reconfigure done" in said
    assert site.together() == sets(NODES[:2], NODES[2:])


@pytest.mark.parametrize("way", ["apply", "watch"])
def test_a_slurmctld_that_died_of_a_killed_change_is_brought_back(site: TopologySite, way: str) -> None:
    """In the foreground of a supervisor, and before 23.11 always, slurmctld dies of a file that it does not take."""
    site.apply("--force")
    good = site.conf.read_text()
    real = shutil.which("scontrol")
    killed = site.folder / "killed"
    site.script(
        "scontrol",
        f'if [ "$1" = reconfigure ] && [ ! -e {killed} ]; then',
        f"  touch {killed}; kill -KILL $PPID; kill -KILL $(cat {site.controller.folder}/slurmctld.pid); exit 1",
        "fi",
        f'exec {real} "$@"',
    )
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    assert site.run("apply", "--now", code=None).returncode == -signal.SIGKILL
    assert site.conf.read_text() != good
    site.stop()
    if way == "apply":
        said = site.apply("--now")
        assert "slurmctld is restarted" in said
        assert site.together() == sets(NODES[:2], NODES[2:])
    else:
        assert "slurmctld is restarted" in site.run("watch", "--once").stdout
        assert site.conf.read_text() == good
        assert site.together() == HALVES
    assert [event["phase"] for event in site.events("topology.rolled-back")] == ["done"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_asks_it_to_end_in_the_middle_waits_for_the_end(site: TopologySite, number: signal.Signals) -> None:
    site.apply("--force")
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    real = shutil.which("scontrol")
    site.script(
        "scontrol",
        f'if [ "$1" = reconfigure ]; then kill -{number.value} $PPID; fi',
        f'exec {real} "$@"',
    )
    site.run("apply", "--now", code=128 + number)
    assert [event["phase"] for event in site.events("topology.change")][-2:] == ["intent", "done"]
    site.script("scontrol", f'exec {real} "$@"')
    assert site.together() == sets(NODES[:2], NODES[2:])
    assert "nothing to do" in site.apply("--now")


def test_what_somebody_writes_in_the_middle_is_kept(site: TopologySite) -> None:
    site.apply("--force")
    good = site.conf.read_text()
    spoils(site)
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    said = site.apply("--now", code=1)
    assert "what somebody else wrote meanwhile is" in said
    assert "SwitchName=top Switches=nosuch\n" in {
        path.read_text() for path in site.conf.parent.glob("topology.conf.before-fmslurm-*")
    }
    assert site.conf.read_text() == good


def test_a_list_that_breaks_off_moves_nobody(site: TopologySite) -> None:
    site.apply("--force")
    site.places = {name: place for name, place in site.places.items() if name in NODES[:3]}
    site.put("spine/right", "n2")
    said = site.apply("--now")
    assert "nobody tells the place of n[4-8]" in said
    assert site.together() == sets(("n1", "n3", "n4"), ("n2", *NODES[4:]))
    (site.folder / "state" / "topology.json").unlink()
    site.put("spine/left", "n2")
    assert "no longer known" in site.apply("--now", code=1)
    assert site.together() == sets(("n1", "n3", "n4"), ("n2", *NODES[4:]))


def test_a_file_of_another_plugin_is_never_put_where_slurm_reads_it(site: TopologySite, version: Version) -> None:
    if not has(version, "topology-block"):
        pytest.skip("topology/block came with 23.11")
    site.apply("--force")
    good = site.conf.read_text()
    for node, place in site.places.items():
        place["clique"] = "c.1" if node in NODES[:4] else "c.2"
    site.settings["topology"] |= {"format": "block", "block_size": 4, "min_interval_min": 0}
    for _ in range(2):
        assert "would not start any more" in site.run("watch", "--once").stdout
    assert "would not start any more" in site.apply("--force", "--now", code=1)
    assert site.conf.read_text() == good


def test_generate_keeps_what_somebody_else_wrote(site: TopologySite) -> None:
    path = str(site.conf)
    assert "--force" in site.run("generate", "-o", path, code=2).stderr
    assert site.conf.read_text() == THEIRS
    assert "before-fmslurm" in site.run("generate", "-o", path, "--force").stderr
    assert state_of(site.conf.read_text()) == OURS
    site.run("generate", "-o", path)


def test_check_and_apply_say_the_same_of_nodes_that_stop(site: TopologySite) -> None:
    site.put("other/third", "n8")
    site.apply("--force")
    site.put("", *NODES[4:])
    assert "nothing to do" in site.apply("--now")
    site.run("check")


def test_two_at_once_take_turns(site: TopologySite) -> None:
    real = shutil.which("scontrol")
    inner = site.folder / "inner"
    site.script(
        "scontrol",
        f'if [ "$1" = reconfigure ] && [ ! -e {inner} ]; then',
        f"  touch {inner}; FMSLURM_CONFIG={site.folder}/fmslurm.yaml {FMSLURM} topology apply --now >{inner} 2>&1",
        "fi",
        f'exec {real} "$@"',
    )
    site.apply("--force")
    assert "another fmslurm changes the topology" in inner.read_text()
    assert site.together() == HALVES


def test_the_watch_acts_only_where_it_may(site: TopologySite) -> None:
    def watched() -> str:
        return site.run("watch", "--once").stdout.strip()

    site.apply("--force")
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    site.settings["topology"]["min_interval_min"] = 0
    site.settings["mode"]["topology"] = "shadow"
    for _ in range(2):
        assert "would reconfigure; not done: mode.topology is shadow" in watched()
    (event,) = site.events("topology.drift")
    assert event["dry_run"] is True
    site.settings["mode"]["topology"] = "off"
    assert watched().startswith("off")
    site.settings["mode"]["topology"] = "enforce"
    switch = site.folder / "share" / OFF_FOLDER
    (switch / "topology.json").write_text(json.dumps({"schema": 1, "until": 4e9, "reason": "a test", "by": "me"}))
    assert "switched off by me" in watched()
    (switch / "topology.json").unlink()
    assert site.together() == HALVES
    assert "reconfigure done" in watched()
    assert site.together() == sets(NODES[:2], NODES[2:])
    assert "nothing to do" in watched()


def test_the_watch_goes_on_and_says_what_is_new(site: TopologySite) -> None:
    site.settings["topology"]["watch_interval_min"] = 0.1
    site.settings["topology"]["min_interval_min"] = 0
    site.apply("--force")
    with site.background("watch") as said:
        assert said() == "nothing to do: all nodes sit where Slurm has them"
        site.put("a/b", *NODES[:2])
        site.put("c/d", *NODES[2:])
        site.write()
        assert "waiting for the same answer" in said()
        assert said().startswith("reconfigure done")
        assert site.together() == sets(NODES[:2], NODES[2:])
        (site.folder / "places.json").write_text("{")
        assert any(said().startswith("not looked: ") for _ in range(2))


def test_the_watch_waits_for_the_same_answer_twice(site: TopologySite) -> None:
    site.apply("--force")
    memory = site.folder / "state" / "topology.json"
    known = json.loads(memory.read_text())
    known["past"]["acted_at"] = 0
    memory.write_text(json.dumps(known))
    site.put("a/b", *NODES[:2])
    site.put("c/d", *NODES[2:])
    assert "waiting for the same answer" in site.run("watch", "--once").stdout
    site.put("c/d", "n1")
    assert "waiting for the same answer" in site.run("watch", "--once").stdout
    assert site.together() == HALVES
    assert "reconfigure done" in site.run("watch", "--once").stdout
    assert site.together() == sets(NODES[1:2], (*NODES[:1], *NODES[2:]))


def test_nodes_that_stop_change_nothing_by_themselves(site: TopologySite) -> None:
    site.apply("--force")
    before = site.reconfigures()
    site.put("", "n1", "n2")
    assert "nothing to do" in site.apply("--now")
    assert site.together() == HALVES
    site.put("a/b", *NODES[2:4])
    site.apply("--now")
    assert site.leaves()["n3"] == site.leaves()["n4"]
    assert site.leaves()["n3"] != site.leaves()["n5"]
    assert site.reconfigures() >= before


def test_most_places_lost_at_once_is_no_answer(site: TopologySite) -> None:
    site.apply("--force")
    for node in NODES[:6]:
        site.places[node] = {"node": node, "path": [], "instance_id": f"i-{node}"}
    assert "no longer known" in site.apply("--now", "--force", code=1)
    assert site.together() == HALVES
    site.apply("--now", "--accept-loss")
    assert "unplaced-all" in {leaf for leaf in site.leaves().values()}


def test_every_node_of_slurms_and_no_other_is_in_the_file(site: TopologySite) -> None:
    site.places = {name: place for name, place in site.places.items() if name != "n8"}
    site.put("spine/right", "nobody")
    said = site.apply("--force")
    assert "nobody tells the place of n8" in said
    assert "Slurm has no nodes nobody: left out" in said
    assert site.together() == sets(NODES[:4], NODES[4:7], NODES[7:])
    assert "nobody" not in site.conf.read_text().replace("nobody tells", "")


def test_slurms_own_word_is_no_reason_to_change_it(site: TopologySite) -> None:
    for source in ("cluster", "auto"):
        said = site.apply("--force", "--source", source, code=None)
        if source == "auto":
            continue  # the file is there, and is taken
        assert "no reason to change it" in said
        assert site.conf.read_text() == THEIRS


def test_a_tree_that_takes_longer_than_a_command_waits_is_no_refusal(
    controller: BareController, version: Version
) -> None:
    """1,300 switches take slurmctld some seconds, in which it answers nobody; scontrol gives up after one."""
    names = [f"n{number}" for number in range(1300)]
    controller.write(
        {"topology.conf": "SwitchName=theirs Nodes=n[0-1299]\n"}, "n[0-1299]", more=f"{TREE}\nMessageTimeout=1"
    )
    site = TopologySite(controller)
    site.settings["topology"]["max_switches"] = 100_000
    for number, name in enumerate(names):
        site.put(f"spine/leaf{number}", name)
    with site.daemon():
        site.apply("--force")
        assert len(site.together()) == 1300
        assert [event["phase"] for event in site.events("topology.change")] == ["intent", "done"]
    site.clear()


def test_cloud_nodes_that_are_powered_down_have_their_place(controller: BareController, version: Version) -> None:
    saving = "SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=60\nSuspendTimeout=5\nResumeTimeout=60"
    controller.write({"topology.conf": THEIRS}, "n[1-8]", more=f"{TREE}\n{saving}")
    controller.conf.write_text(controller.conf.read_text().replace("State=UNKNOWN", "State=CLOUD"))
    site = TopologySite(controller)
    site.put("spine/left", *NODES[:4])
    site.put("spine/right", *NODES[4:])
    with site.daemon():
        site.apply("--force")
        assert site.together() == HALVES
        controller.ask("scontrol", "update", "NodeName=n1", "State=POWER_UP")
        site.put("spine/right", "n1", "n2")  # one is coming up, one stays down
        said = site.apply("--now")
        assert ("node-update done" in said) == has(version, "node-topology-update")
        assert site.together() == sets(NODES[2:4], (*NODES[:2], *NODES[4:]))
        site.stop()
        site.start()
        assert site.together() == sets(NODES[2:4], (*NODES[:2], *NODES[4:]))
        site.put("spine/left", "n1", "n2")
        site.put("other/third", "n3")
        site.apply("--now")
        assert site.together() == sets(("n1", "n2", "n4"), ("n3",), NODES[4:])
        assert "all 8 nodes sit" in site.run("check").stdout
    site.clear()


def test_a_plugin_that_is_not_set_is_named(controller: BareController, version: Version) -> None:
    controller.write({}, "n[1-8]")
    site = TopologySite(controller)
    site.put("spine/left", *NODES[:4])
    site.put("spine/right", *NODES[4:])
    with site.daemon():
        said = site.apply("--format", "tree", code=4)
        assert "set TopologyPlugin=topology/tree in slurm.conf" in said
        assert state_of(site.conf.read_text()) == OURS
        assert "nothing to do" in site.apply("--format", "tree")
        controller.conf.write_text(f"{controller.conf.read_text()}{TREE}\n")
        if (version.major, version.minor) >= (23, 11):
            controller.ask("scontrol", "reconfigure")
        else:
            site.stop()
            site.start()
        assert site.together() == HALVES
        assert "nothing to do" in site.apply()
    site.clear()


def test_a_first_tree_needs_a_restart_before_2311(controller: BareController, version: Version) -> None:
    controller.write({}, "n[1-8]")
    site = TopologySite(controller)
    site.put("spine/left", *NODES[:4])
    site.put("spine/right", *NODES[4:])
    if (version.major, version.minor) >= (23, 11):
        pytest.skip("from 23.11 on a reconfigure takes in another plugin")
    with site.daemon():
        controller.conf.write_text(f"{controller.conf.read_text()}{TREE}\n")
        controller.ask("scontrol", "reconfigure")
        site.settings["topology"]["apply"] = "reconfigure"
        assert "this takes a restart" in site.apply(code=1)
        site.settings["topology"]["apply"] = "restart"
        site.script(
            "restart-slurmctld",
            f"kill $(cat {controller.folder}/slurmctld.pid)",
            "sleep 1",
            f"exec slurmctld -f {controller.conf}",
        )
        site.apply()
        assert site.together() == HALVES
    site.clear()


def test_yaml_needs_no_plugin_and_moves_trees_and_blocks(controller: BareController, version: Version) -> None:
    if not has(version, "topology-yaml"):
        pytest.skip("topology.yaml came with 25.05")
    controller.write({}, "n[1-8]")
    site = TopologySite(controller)
    site.put("spine/left", *NODES[:4], clique="c.1", instance_type="p6e-gb200.36xlarge")
    site.put("spine/right", *NODES[4:], clique="c.2", instance_type="p6e-gb200.36xlarge")
    with site.daemon():
        site.apply()
        assert site.together() == HALVES
        assert site.together("nvl") == HALVES
        before = site.reconfigures()
        site.put("spine/right", "n4", clique="c.2", instance_type="p6e-gb200.36xlarge")
        assert "node-update done" in site.apply("--now")
        assert site.reconfigures() == before
        assert site.together() == MOVED
        assert site.together("nvl") == MOVED
        site.put("spine/third", "n8", clique="c.3", instance_type="p6e-gb200.36xlarge")
        assert "reconfigure done" in site.apply("--now")
        assert site.together("nvl") == sets(NODES[:3], NODES[3:7], NODES[7:])
    site.clear()


def test_blocks_are_taken_in(controller: BareController, version: Version) -> None:
    if not has(version, "topology-block"):
        pytest.skip("topology/block came with 23.11")
    controller.write({"topology.conf": "BlockName=b Nodes=n[1-8]\n"}, "n[1-8]", more="TopologyPlugin=topology/block")
    site = TopologySite(controller)
    site.settings["topology"]["block_size"] = 4
    site.put("spine/left", *NODES[:4], clique="c.1")
    site.put("spine/right", *NODES[4:], clique="c.2")
    with site.daemon():
        site.apply("--force")
        assert site.together() >= HALVES
        assert {path[-1] for path in controller.places().values()} == set(site.leaves().values())
    site.clear()
