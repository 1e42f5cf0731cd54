"""On a real Slurm: the breaker opens and the page arrives, once; the node that was drained, and the owner of the job, too."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_lab import controllers, put_back, restarts, start
from installed_lab import config_path, configure, fmslurm, hooks_running, installed
from test_cluster_hooks import finish, reasons, submit, until

from slurm_ext.lab.cluster import Lab

sys.path.append(str(Path(__file__).resolve().parents[1] / "notices"))
from stand_ins import program

#: A chat on the loopback of the lab's head, which is no other machine's: keeps each message as a line of a file.
CHAT_PORT = 8099
CHAT = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2], "ab") as stream:
            stream.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Chat:
    """What the chat was sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"http://127.0.0.1:{CHAT_PORT}/services/sEcReTsEcReT"

    @property
    def got(self) -> list[dict]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab with the gate alone, in which one node an hour may be drained, and whose Slurm mails by a stand-in."""
    with installed(new_lab, "p", nodes=4) as lab:
        configure(lab, "mode", burnin="off")
        configure(lab, "drain", max_per_hour=1, max_percent_per_hour=1.0, first_boot_budget=0)
        program(lab.path("mailprog"), f'echo "$3|$2" >>{lab.path("mails")}\n')
        conf = lab.path("etc", "slurm", "slurm.conf")
        conf.write_text(conf.read_text().replace("MailProg=/bin/true", f"MailProg={lab.path('mailprog')}"))
        assert lab.run(["scontrol", "reconfigure"]).ok
        lab.start("chat", [sys.executable, "-c", CHAT, str(CHAT_PORT), str(lab.path("chat"))])
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    before = config_path(site).read_text()
    yield
    put_back(site, before)
    for path in site.path("share", "ledger").glob("*.json"):
        path.unlink()


@pytest.fixture
def chat(site: Lab) -> Chat:
    site.path("chat").unlink(missing_ok=True)
    return Chat(site.path("chat"))


def tell(lab: Lab, chat: Chat) -> Path:
    """Name a webhook for everything and a program for pages; return the file in which that program keeps them."""
    pages = lab.path("pages")
    pages.unlink(missing_ok=True)
    path = program(lab.path("page-me"), f"cat >>{pages}\n")
    targets = [{"webhook": chat.url, "name": "chat"}, {"command": str(path), "severity": "page"}]
    configure(lab, "notify", targets=targets, users=True)
    return pages


def kinds(chat: Chat) -> list[str]:
    return [got["kind"] for got in chat.got]


def test_the_breaker_opens_and_the_page_arrives(site: Lab, chat: Chat) -> None:
    pages = tell(site, chat)
    start(site)
    for node in site.nodes[:3]:
        site.fault(node, "ecc", gpu=1)
    jobs = [submit(site, "echo ran\n", "-N1", "--exclusive", f"-w{node}")[0] for node in site.nodes[:3]]
    until(lambda: "breaker.open" in kinds(chat), "the page is in the chat", timeout_s=240)
    until(pages.exists, "the program has it, too", timeout_s=60)
    until(lambda: not hooks_running(site), "all hooks have ended", timeout_s=120)
    (drained,) = reasons(site)
    page = next(got for got in chat.got if got["kind"] == "breaker.open")
    assert page["severity"] == "page"
    assert page["cluster"] == site.state.cluster
    assert page["subject"].startswith(f"fmslurm {site.state.cluster}: PAGE: the drain breaker is open")
    assert "gpu.ecc-uncorrected gpu:1" in page["body"]
    assert drained not in page["where"].split(",")
    assert "fmslurm status" in page["next"]
    # What was drained is told by all of a minute; a page does not wait for it.
    until(lambda: "node.drained" in kinds(chat), "the drain is told", timeout_s=240)
    notice = next(got for got in chat.got if got["kind"] == "node.drained")
    assert (notice["severity"], notice["where"]) == ("notice", drained)
    # The owner hears of the requeue by Slurm's own mail program, under the name that Slurm uses.
    mails = site.path("mails")
    until(mails.exists, "an owner has mail", timeout_s=120)
    user, _, subject = mails.read_text().splitlines()[0].partition("|")
    assert user == "root"
    assert any(subject.startswith(f"Slurm Job_id={job} ") for job in jobs)
    assert "by fmslurm: " in subject
    # The daemon is killed and starts anew: nobody is told twice.
    before = kinds(chat).count("breaker.open")
    start(site)
    for node in site.nodes:
        site.heal(node)
    for path in site.path("share", "ledger").glob("*.json"):
        path.unlink()  # as if an hour had gone by
    until(lambda: "breaker.closed" in kinds(chat), "its end is told", timeout_s=120)
    assert kinds(chat).count("breaker.open") == before
    assert len(pages.read_text().splitlines()) == before
    told = [got["id"] for got in chat.got]
    assert sorted(told) == sorted(set(told))
    listed = json.loads(fmslurm(site, "notify", "list", "--json"))["targets"]
    assert [(one["name"], one["lost"], one["fails"]) for one in listed] == [("chat", 0, False), ("page-me", 0, False)]
    for job in jobs:
        site.run(["scancel", job])


def test_in_shadow_what_would_have_been_is_told(site: Lab, chat: Chat) -> None:
    tell(site, chat)
    configure(site, "mode", gate="shadow")
    start(site)
    node = site.nodes[0]
    site.fault(node, "ecc", gpu=1)
    job, _ = submit(site, "echo ran\n", "-N1", "--exclusive", f"-w{node}")
    finish(site, job, timeout_s=120)
    assert restarts(site, job) == 0
    until(lambda: "node.drained" in kinds(chat), "the drain that was none is told", timeout_s=240)
    notice = next(got for got in chat.got if got["kind"] == "node.drained")
    assert notice["dry_run"] is True
    assert notice["what"] == "1 node would have been drained"
    assert reasons(site) == {}
    assert controllers(site)


def test_a_ledger_that_is_gone_wakes_somebody(site: Lab, chat: Chat) -> None:
    pages = tell(site, chat)
    start(site)
    ledger = site.path("share", "ledger")
    ledger.rename(site.path("share", "elsewhere"))
    try:
        until(lambda: pages.exists() and pages.read_text().endswith("\n"), "the page is there", timeout_s=240)
    finally:
        site.path("share", "elsewhere").rename(ledger)
    page = json.loads(pages.read_text())
    assert page["kind"] == "ledger.unreadable"
    assert "no node can be drained" in page["subject"]
    until(lambda: "ledger.readable" in kinds(chat), "its end is told", timeout_s=240)
    assert len(pages.read_text().splitlines()) == 1
