"""Clients that do nothing hold up nobody: they are cut off, and there are never too many of them."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from services import BEARER, TOKEN, Running, StubCaptioner, ask, error_of, form, serving, until
from test_service import jpeg, stream_address
from websockets.sync.client import connect

from picknet.serve.server import _max_connections
from picknet.serve.service import Limits

HEADERS = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n"
PATIENCE = 1.0
"""Seconds. A client of a test may have to wait for its turn on a busy machine."""


@pytest.fixture
def impatient(running: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setattr("picknet.serve.connection.PATIENCE", PATIENCE)
    return running


def connected(running: Running, text: str = "") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect(("127.0.0.1", running.port))
    client.sendall(text.encode())
    return client


def read_all(client: socket.socket, *, pause: float = 0.0) -> int:
    """The number of bytes until the end of the connection."""
    count = 0
    try:
        while piece := client.recv(1 << 18):
            count += len(piece)
            time.sleep(pause)
    except ConnectionResetError:
        pass
    return count


def read_until(client: socket.socket, end: bytes) -> None:
    content = b""
    while end not in content:
        piece = client.recv(1 << 18)
        assert piece, content
        content += piece


def test_a_request_whose_headers_do_not_end_is_cut_off(impatient: Running) -> None:
    with connected(impatient) as silent, connected(impatient, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: ") as slow:
        assert read_all(silent) == read_all(slow) == 0
    with connected(impatient, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea") as second:
        assert read_all(second) > 0  # the answer to the first request


def test_what_is_at_work_is_not_cut_off(impatient: Running) -> None:
    with connect(stream_address(impatient), additional_headers=BEARER) as stream:
        body, _ = form(path="clip.mp4")
        head = f"POST /v1/captions HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n"
        with connected(impatient, f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n") as upload:
            time.sleep(1.3 * PATIENCE)
            upload.sendall(body)
            read_until(upload, b'"caption":"7 22 37 52"')
            time.sleep(0.1)
            upload.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            read_until(upload, b"ok\n")
        stream.send(jpeg(3))
        assert json.loads(stream.recv(timeout=20))["caption"] == "number 3"


LARGE = 8_000_000
"""Bytes that do not fit into the buffers of a connection."""


@pytest.fixture(params=["/v1/samples/large.mp4", "/v1/samples"])
def large(request: pytest.FixtureRequest, impatient: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A request for so many bytes: in pieces, or in one, whose request is over before it is read."""
    with (tmp_path / "large.mp4").open("wb") as file:
        file.truncate(LARGE)
    names = ["large.mp4", *(f"{number:01000}" for number in range(LARGE // 1000))]
    monkeypatch.setattr(impatient.service, "samples", dict.fromkeys(names, tmp_path / "large.mp4"))
    return f"GET {request.param} HTTP/1.1\r\n{HEADERS}Connection: close\r\n\r\n"


def test_a_client_that_does_not_read_its_answer_is_cut_off(impatient: Running, large: str) -> None:
    with connected(impatient, large) as client:
        time.sleep(2.3 * PATIENCE)
        assert read_all(client) < LARGE


def test_a_slow_client_gets_the_whole_answer(impatient: Running, large: str) -> None:
    with connected(impatient, large) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        assert read_all(client, pause=0.01) > LARGE


def test_beyond_the_limit_connections_are_refused_at_once(
    films: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("picknet.serve.server.MAX_CONNECTIONS", 2)
    with serving(StubCaptioner(), Limits(workers=1), root=films) as running, connected(running):
        with connected(running), connected(running) as third:
            head, _, body = third.recv(10_000).partition(b"\r\n\r\n")
        until(lambda: ask(running, "GET", "/healthz")[0] == 200, seconds=5)
    assert head.startswith(b"HTTP/1.1 429 ")
    assert error_of((429, {}, body)) == (429, "too many connections; try again later")
    assert capfd.readouterr().err == ""


def test_there_are_no_more_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits: Any = (256, 4096)

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        nonlocal limits
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert _max_connections(Limits(workers=2, queue=16)) == 1024
    assert limits == (1024 + 2 * 128 + 20 + 32, 4096)
    limits = (256, 1024)
    assert _max_connections(Limits(workers=2, queue=16)) == 1024 - 2 * 128 - 20 - 32
    assert _max_connections(Limits(workers=2, queue=10_000)) == 256


def test_a_caption_that_a_stop_ends_is_told_so(
    films: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("picknet.serve.server.STOP_SECONDS", 0.2)
    captioner = StubCaptioner()
    captioner.gate.clear()
    answers = []

    def asks() -> None:
        answers.append(ask(running, "POST", "/v1/captions", *form(path="clip.mp4")))
        captioner.gate.set()

    asking = threading.Thread(target=asks)
    with serving(captioner, Limits(workers=1), root=films) as running:
        asking.start()
        until(lambda: captioner.num_waiting == 1)
    asking.join()
    assert [error_of(answer) for answer in answers] == [(503, "the service is stopping")]
    assert "Traceback" not in capfd.readouterr().err
