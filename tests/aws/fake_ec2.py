"""EC2 on loopback, as far as fmslurm asks it: the query protocol (a form comes in, XML goes out), and faults to order.

It counts calls, pages, throttles, fails, breaks its XML, closes, hangs, denies, ends instances and fills in capacity blocks late.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"

#: One order for one call: None lets it through, else a name in FAULTS, or (status, code, words).
Order = str | tuple[int, str, str] | None


class FakeEc2:
    """The state of one region. `faults` is asked before each call: (action, number of this action's call, form) -> an order."""

    FAULTS: ClassVar[Mapping[str, tuple[int, str, str]]] = {
        "throttle": (503, "RequestLimitExceeded", "Request limit exceeded."),
        "broken-inside": (500, "InternalError", "An internal error has occurred"),
        "unavailable": (503, "Unavailable", "The service is unavailable. Please try again shortly."),
        "expired": (400, "ExpiredToken", "The security token included in the request is expired"),
        "unknown-key": (401, "AuthFailure", "AWS was not able to validate the provided access credentials"),
        "clock": (400, "RequestExpired", "Request has expired."),
    }

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.instances: dict[str, dict[str, Any]] = {}
        self.reservations: dict[str, dict[str, Any]] = {}
        self.types: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.forms: list[dict[str, str]] = []
        self.faults: Callable[[str, int, Mapping[str, str]], Order] = lambda _action, _number, _form: None
        self.page_size = 0
        self.blocks_after = 0  # CapacityBlockId is told from this call of DescribeInstanceTopology on
        self.names_gone = True
        self.silent_on: set[str] = set()  # DescribeInstanceTopology leaves them out, and says nothing of it
        self.under_way = self.most_under_way = 0
        self.hung = threading.Event()

    def launch(self, instance_id: str, *network_nodes: str, type: str = "p5.48xlarge", **more: Any) -> None:
        """Add a running instance."""
        self.instances[instance_id] = {
            "type": type,
            "nodes": network_nodes,
            "zone": "us-east-2a",
            "zone_id": "use2-az1",
            "block": "",
            "address": "",
            "vpc": "vpc-1",
            "state": "running",
            "tags": {},
        } | more

    def end(self, instance_id: str) -> None:
        """Terminate an instance: EC2 knows its id no more."""
        self.instances.pop(instance_id)

    def answer(self, form: Mapping[str, str]) -> tuple[int, str] | str:
        """Return status and body, or the name of a fault of the connection."""
        action = form["Action"]
        with self.lock:
            self.calls[action] += 1
            number = self.calls[action]
            self.forms.append(dict(form))
            order = self.faults(action, number, form)
        if order in ("close", "hang", "half", "drip", "not-xml"):
            return str(order)
        if order is not None:
            return error(*(self.FAULTS[order] if isinstance(order, str) else order))
        maker = getattr(self, f"_{action}", None)
        if maker is None:
            return error(400, "InvalidAction", f"The action {action} is not valid for this web service.")
        with self.lock:
            body = maker(form, number)
        return body if isinstance(body, tuple) else (200, document(action, body))

    def _DescribeInstanceTopology(self, form: Mapping[str, str], number: int) -> str | tuple[int, str]:
        ids = listed(form, "InstanceId")
        if len(ids) > 100:
            return error(400, "InvalidParameterValue", "The maximum number of instance IDs is 100")
        if ids and "MaxResults" in form:
            return error(
                400, "InvalidParameterCombination", "The parameters MaxResults and InstanceIds exclude each other"
            )
        gone = [one for one in ids if one not in self.instances]
        if gone:
            named = f"'{', '.join(gone)}' do" if self.names_gone else "you named do"
            return error(400, "InvalidInstanceID.NotFound", f"The instance IDs {named} not exist")
        rows, token = self._page(ids or sorted(self.instances), form)
        items = []
        for instance_id in [one for one in rows if one not in self.silent_on]:
            told = self.instances[instance_id]
            running = told["state"] == "running"
            items.append(
                tag("instanceId", instance_id)
                + tag("instanceType", told["type"])
                + (tag("capacityBlockId", told["block"]) if told["block"] and number >= self.blocks_after else "")
                + (each("networkNodeSet", [escape(node) for node in told["nodes"]]) if running else "<networkNodeSet/>")
                + tag("availabilityZone", told["zone"])
                + tag("zoneId", told["zone_id"])
            )
        return each("instanceSet", items) + token

    def _DescribeCapacityReservationTopology(self, form: Mapping[str, str], _number: int) -> str | tuple[int, str]:
        ids = listed(form, "CapacityReservationId")
        if len(ids) > 10:
            return error(400, "InvalidParameterValue", "The maximum number of capacity reservation IDs is 10")
        if gone := [one for one in ids if one not in self.reservations]:
            words = f"The capacity reservation '{gone[0]}' does not exist."
            return error(400, "InvalidCapacityReservationId.NotFound", words)
        rows, token = self._page(ids or sorted(self.reservations), form)
        items = [
            tag("capacityReservationId", one)
            + tag("state", self.reservations[one].get("state", "active"))
            + tag("instanceType", self.reservations[one].get("type", "p5.48xlarge"))
            + tag("capacityBlockId", self.reservations[one].get("block", ""))
            + each("networkNodeSet", [escape(node) for node in self.reservations[one]["nodes"]])
            + tag("availabilityZoneId", "use2-az1")
            + tag("availabilityZone", "us-east-2a")
            for one in rows
        ]
        return each("capacityReservationSet", items) + token

    def _DescribeInstances(self, form: Mapping[str, str], _number: int) -> str:
        wanted = filters(form)
        chosen = [one for one in sorted(self.instances) if self._matches(one, wanted)]
        rows, token = self._page(chosen, form)
        items = []
        for instance_id in rows:
            told = self.instances[instance_id]
            tags = [tag("key", key) + tag("value", value) for key, value in told["tags"].items()]
            items.append(
                each(
                    "instancesSet",
                    [
                        tag("instanceId", instance_id)
                        + tag("instanceType", told["type"])
                        + f"<instanceState>{tag('name', told['state'])}</instanceState>"
                        + tag("privateIpAddress", told["address"])
                        + tag("vpcId", told["vpc"])
                        + each(
                            "networkInterfaceSet",
                            [each("ipv6AddressesSet", [tag("ipv6Address", told["ipv6"])])] if told.get("ipv6") else [],
                        )
                        + f"<placement>{tag('availabilityZone', told['zone'])}</placement>"
                        + each("tagSet", tags)
                    ],
                )
            )
        return each("reservationSet", items) + token

    def _DescribeInstanceTypes(self, form: Mapping[str, str], _number: int) -> str | tuple[int, str]:
        wanted = listed(form, "InstanceType")
        patterns = filters(form).get("instance-type", [])
        names = wanted or [name for name in sorted(self.types) if not patterns or any(fits(name, p) for p in patterns)]
        if unknown := [name for name in names if name not in self.types]:
            words = f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
            return error(400, "InvalidInstanceType", words)
        rows, token = self._page(names, form)
        return each("instanceTypeSet", [type_body(name, self.types[name]) for name in rows]) + token

    def _matches(self, instance_id: str, chosen: Mapping[str, list[str]]) -> bool:
        told = self.instances[instance_id]
        for name, values in chosen.items():
            if name == "instance-id":
                has = instance_id
            elif name == "instance-state-name":
                has = told["state"]
            elif name == "network-interface.addresses.private-ip-address":
                has = told["address"]
            elif name == "network-interface.ipv6-addresses.ipv6-address":
                has = told.get("ipv6", "")
            elif name.startswith("tag:"):
                has = told["tags"].get(name[4:], "")
            else:
                raise AssertionError(f"no filter {name} in the fake")
            if has not in values:
                return False
        return True

    def _page(self, rows: list[str], form: Mapping[str, str]) -> tuple[list[str], str]:
        size = self.page_size or int(form.get("MaxResults", "0")) or len(rows) or 1
        start = int(form.get("NextToken", "page-0").removeprefix("page-"))
        more = tag("nextToken", f"page-{start + size}") if start + size < len(rows) else ""
        return rows[start : start + size], more


def listed(form: Mapping[str, str], name: str) -> list[str]:
    """Return a list of the query protocol: Name.1, Name.2, ..."""
    found = [(key.rpartition(".")[2], value) for key, value in form.items() if key.rpartition(".")[0] == name]
    return [value for _, value in sorted(found, key=lambda pair: int(pair[0]))]


def filters(form: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the filters of a form: name -> values."""
    found = {}
    number = 1
    while f"Filter.{number}.Name" in form:
        found[form[f"Filter.{number}.Name"]] = listed(form, f"Filter.{number}.Value")
        number += 1
    return found


def fits(name: str, pattern: str) -> bool:
    """Say whether a name fits a filter with stars."""
    return name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))


def tag(name: str, text: str) -> str:
    return f"<{name}>{escape(str(text))}</{name}>" if text != "" else ""


def each(name: str, items: list[str]) -> str:
    return f"<{name}>" + "".join(f"<item>{item}</item>" for item in items) + f"</{name}>"


def document(action: str, body: str) -> str:
    return f'<?xml version="1.0"?>\n<{action}Response xmlns="{NAMESPACE}"><requestId>r-1</requestId>{body}</{action}Response>'


def error(status: int, code: str, words: str) -> tuple[int, str]:
    inside = f"<Error><Code>{escape(code)}</Code><Message>{escape(words)}</Message></Error>"
    return status, f'<?xml version="1.0"?>\n<Response><Errors>{inside}</Errors><RequestID>r-1</RequestID></Response>'


def type_body(name: str, told: Mapping[str, Any]) -> str:
    """Return one type as DescribeInstanceTypes tells it, from a few words: vcpus, cores, threads, memory, gpu, efa, cards, disks."""
    gpu = told.get("gpu")
    disks = told.get("disks")
    body = tag("instanceType", name)
    body += f"<processorInfo>{each('supportedArchitectures', [told.get('arch', 'x86_64')])}</processorInfo>"
    body += (
        f"<vCpuInfo>{tag('defaultVCpus', told['vcpus'])}{tag('defaultCores', told['cores'])}"
        f"{tag('defaultThreadsPerCore', told['threads'])}</vCpuInfo>"
        f"<memoryInfo>{tag('sizeInMiB', told['memory'])}</memoryInfo>"
    )
    if gpu:
        maker, label, count, memory = gpu
        body += (
            f"<gpuInfo><gpus><item>{tag('name', label)}{tag('manufacturer', maker)}{tag('count', count)}"
            f"<memoryInfo>{tag('sizeInMiB', memory)}</memoryInfo></item></gpus></gpuInfo>"
        )
    if disks:
        count, size = disks
        body += (
            f"<instanceStorageInfo>{each('disks', [tag('sizeInGB', size) + tag('count', count)])}</instanceStorageInfo>"
        )
    body += (
        f"<networkInfo>{tag('maximumNetworkCards', told.get('cards', 1))}"
        f"<efaInfo>{tag('maximumEfaInterfaces', told.get('efa', 1))}</efaInfo></networkInfo>"
    )
    return body


@contextmanager
def running() -> Iterator[tuple[FakeEc2, str]]:
    """Yield a fake and the URL where it answers."""
    fake = FakeEc2()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            with fake.lock:
                fake.under_way += 1
                fake.most_under_way = max(fake.most_under_way, fake.under_way)
            try:
                self._answer(fake.answer(dict(parse_qsl(text))))
            finally:
                with fake.lock:
                    fake.under_way -= 1

        def _answer(self, answer: tuple[int, str] | str) -> None:
            if isinstance(answer, str):
                self.close_connection = True
                if answer == "hang":
                    fake.hung.wait(60)
                elif answer == "half":
                    self._send(200, document("DescribeInstanceTopology", "<instanceSet>"), short=True)
                elif answer == "not-xml":
                    self._send(200, "<html>the proxy says no")
                elif answer == "drip":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                    while not fake.hung.is_set():
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.05)
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._send(*answer)

        def _send(self, status: int, body: str, *, short: bool = False) -> None:
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/xml;charset=UTF-8")
            self.send_header("Content-Length", str(len(content) + (50 if short else 0)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            return  # a client that went away

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        fake.hung.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
