"""Addresses that clients name: only of hosts that are allowed, and nothing inside the service's own network."""

import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from services import Running, StubCaptioner, ask, error_of, form, serving, until, uploads

from picknet.errors import BadSetting
from picknet.serve.fetching import Hosts, Stopping, is_public
from picknet.serve.service import Limits
from picknet.video.download import Deadline
from picknet.video.source import UnreadableVideo


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "172.16.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1",
     "::ffff:8.8.8.8", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "192.0.0.9", "192.88.99.1", "3fff::1",
     "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:10.0.0.1"],
)  # fmt: skip
def test_addresses_inside_a_network_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    ["ftp://media.example/a.mp4", "file:///etc/passwd", "media.example/a.mp4", "http://", "http://[::1", "",
     "http://other.example/a.mp4", "http://media.example.evil.example/", "http://media.example@evil.example/a.mp4",
     "http://media.example:22/", "http://media.example:99999/", "https://media.example:8080/"],
)  # fmt: skip
def test_only_allowed_hosts_and_ports_can_be_named(address: str) -> None:
    with pytest.raises(BadSetting, match=r"^source: "):
        Hosts(["media.example"]).check(address)


def test_a_host_is_allowed_with_its_usual_ports_or_with_one_of_its_own() -> None:
    hosts = Hosts(["Media.example.", " cdn.example:08080 ", "b.example:", "[2606:4700:0::1111]", "8.8.8.8", ""])
    for address in (
        "http://media.example/a.mp4", "https://MEDIA.example./a", "http://cdn.example:8080/a", "http://b.example/a",
        "http://[2606:4700::1111]/a", "http://8.8.8.8/a",
    ):  # fmt: skip
        hosts.check(address)
    with pytest.raises(BadSetting, match=r"cdn\.example:80 is not one of the hosts .*, cdn\.example:8080, media\.ex"):
        hosts.check("http://cdn.example/a.mp4")
    for wrong in ("http://media.example", "*.example", "a b/c", "a b", "media.example:x", "..", "a..b", "127.1"):
        with pytest.raises(BadSetting, match=r"--allow-sources .*: a host name such as"):
            Hosts([wrong])
    for inside in ("localhost", "a.localhost:80", "10.0.0.1", "[::1]"):
        with pytest.raises(BadSetting, match=r"--allow-sources .*: not a public address; those inside a network"):
            Hosts([inside])


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up. All of them are this machine, which counts as public here, the first time."""
    found: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if not str(host).endswith(".example"):
            return real(host, port, *rest, **more)
        address = "10.0.0.1" if host in found or host == "private.example" else "127.0.0.1"
        found.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("picknet.serve.fetching.is_public", lambda address: address == "127.0.0.1")
    return found


def fetched(address: str, *hosts: str, max_bytes: int = 1000, seconds: float = 10.0) -> bytes:
    file = io.BytesIO()
    Hosts(hosts).fetch(address, file, max_bytes=max_bytes, deadline=Deadline(seconds, f"took longer than {seconds} s"))
    return file.getvalue()


def test_a_name_is_looked_up_once_and_the_checked_address_is_used(lookups: list[str]) -> None:
    requests: list[str] = []
    with servers.download(b"film", requests=requests) as server:
        assert fetched(f"http://media.example:{server.port}/a.mp4", f"media.example:{server.port}") == b"film"
    assert lookups == ["media.example"]
    assert f"media.example:{server.port}" in requests[0]


def test_a_redirect_is_checked_like_the_first_address(lookups: list[str]) -> None:
    with servers.download(b"secret") as inside:
        for host in (f"private.example:{inside.port}", f"other.example:{inside.port}", f"127.0.0.1:{inside.port}"):
            location = f"Location: http://{host}/"
            with servers.download(b"", status="302 Found", headers=[location]) as first:
                allowed = (f"media.example:{first.port}", f"private.example:{inside.port}")
                with pytest.raises(BadSetting, match=r"is not a public address|is not one of the hosts"):
                    fetched(f"http://media.example:{first.port}/", *allowed)
            lookups.clear()


def test_a_redirect_shows_no_password(lookups: list[str]) -> None:
    with servers.download(b"", status="302 Found", headers=["Location: http://admin:s3cret@10.0.0.5:8080/"]) as first:
        host = f"media.example:{first.port}"
        with pytest.raises(BadSetting) as refused:
            fetched(f"http://{host}/", host)
    assert str(refused.value) == (
        f"source: it redirects to 10.0.0.5:8080, which is not one of the hosts that --allow-sources lists: {host}"
    )


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host with four addresses, none of which answers."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        for _ in range(4):  # the queue is full, so the system ignores all others
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)] * 4
        monkeypatch.setattr("picknet.serve.fetching.is_public", lambda _: True)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        yield f"media.example:{address[1]}"


def test_all_addresses_of_a_host_together_have_the_time_of_one(full: str) -> None:
    start = time.monotonic()
    with pytest.raises(UnreadableVideo, match=r"took longer than 0\.4 s$"):
        fetched(f"http://{full}/", full, seconds=0.4)
    assert time.monotonic() - start < 1


def test_a_connection_that_is_not_answered_can_be_ended(full: str) -> None:
    deadline = Deadline(60, "took longer than 60 s")
    threading.Timer(0.2, deadline.end, ["nobody waits for it"]).start()
    start = time.monotonic()
    with pytest.raises(UnreadableVideo, match=r"nobody waits for it$"):
        Hosts([full]).fetch(f"http://{full}/", io.BytesIO(), max_bytes=1000, deadline=deadline)
    assert time.monotonic() - start < 2


def test_a_download_has_limits_on_size_and_time(lookups: list[str]) -> None:
    with servers.download(bytes(1001)) as server, pytest.raises(
        UnreadableVideo, match="has 1,001 bytes; at most 1,000 are possible"
    ):
        fetched(f"http://media.example:{server.port}/", f"media.example:{server.port}")
    lookups.clear()
    is_over = threading.Event()

    def drip(request: Any) -> None:
        """A header that never ends."""
        while not is_over.wait(0.05):
            request.wfile.write(b"X")

    start = time.monotonic()
    with servers.Server(drip) as server:
        address, host = f"http://media.example:{server.port}/", f"media.example:{server.port}"
        with pytest.raises(UnreadableVideo, match=r"took longer than 0\.5 s$"):
            fetched(address, host, seconds=0.5)
        lookups.clear()
        hosts = Hosts([host])
        threading.Timer(0.5, hosts.close).start()
        with pytest.raises(Stopping, match=r"^the service is stopping$"):
            hosts.fetch(address, io.BytesIO(), max_bytes=1000, deadline=Deadline(60, "took longer than 60 s"))
        is_over.set()
    assert time.monotonic() - start < 10


def test_a_client_may_name_an_address_of_an_allowed_host(clip: Path, lookups: list[str]) -> None:
    with (
        servers.download(clip.read_bytes()) as server,
        serving(StubCaptioner(), Limits(workers=1), allow_sources=[f"media.example:{server.port}"]) as running,
    ):
        address = f"http://me:secret@media.example:{server.port}/clip.mp4"
        status, _, content = ask(running, "POST", "/v1/captions", *form(source=address))
        assert status == 200
        answer = json.loads(content)
        assert (answer["caption"], answer["video"]) == ("7 22 37 52", address.replace("secret", "***"))
        refused = error_of(ask(running, "POST", "/v1/frames", *form(source=address)))
        assert refused == (400, "source: media.example is not a public address; those inside a network are not fetched")
        assert uploads(running) == []



@pytest.fixture
def slow(lookups: list[str]) -> Iterator[tuple[Running, str]]:
    """A service, and an address at which a server takes long."""
    with servers.silent() as server:
        host = f"media.example:{server.port}"
        with serving(StubCaptioner(), Limits(workers=1), allow_sources=[host]) as running:
            yield running, f"http://{host}/"


def is_fetching(running: Running) -> bool:
    return bool(running.service._hosts._at_work)


def test_a_download_for_a_client_that_has_gone_is_ended(slow: tuple[Running, str]) -> None:
    running, address = slow
    connections = [http.client.HTTPConnection("127.0.0.1", running.port, timeout=30) for _ in range(2)]
    for connection in connections:  # the second one waits for the first one's thread
        connection.request("POST", "/v1/captions", *form(source=address))
        until(lambda: is_fetching(running))
    until(lambda: b"picknet_open_requests 2.0" in ask(running, "GET", "/metrics")[2])
    for left in (b"1.0", b"0.0"):
        connections.pop().close()
        until(lambda left=left: b"picknet_open_requests " + left in ask(running, "GET", "/metrics")[2], seconds=5)
    assert uploads(running) == []


def test_a_service_that_stops_waits_for_no_download(slow: tuple[Running, str]) -> None:
    running, address = slow
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(ask(running, "POST", "/v1/captions", *form(source=address)))
    )
    asking.start()
    until(lambda: is_fetching(running))
    running.service.stop()
    asking.join(5)
    assert [error_of(answer) for answer in answers] == [(503, "the service is stopping")]
