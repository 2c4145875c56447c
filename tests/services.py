"""A service in a thread of the tests: a real server on loopback, real decoders, and a captioner that needs no model."""

import contextlib
import http.client
import importlib.util
import json
import math
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from clips import number_of

from picknet.errors import BadSetting
from picknet.model.sentences import Sentence
from picknet.picking.picker import Pick
from picknet.results import Caption, Picked, Segment, Update
from picknet.serve.server import Server
from picknet.serve.service import Limits, Service

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "correct-horse-battery"
DOUBTFUL = "number 38"
"""The one sentence of a timeline that has a low confidence."""
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class StubPicker:
    """Picks every frame."""

    def __init__(self, rate: float = 1.0, on_glance: Any = lambda frame, probability: None) -> None:
        self.rate = rate
        self._on_glance = on_glance

    def pick(self, frames: Any) -> Iterator[tuple[Any, Pick]]:
        for frame in frames:
            self._on_glance(frame, 0.25)
            yield frame, Pick(frame.index, frame.seconds, 0.5, frame.number)


class StubCaptioner:
    """Says which frames it saw. `gate`: while it is closed, captions and timelines wait."""

    name = "stub"
    picker = object()
    confidence_note: str | None = None

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.num_waiting = self.num_captions = 0

    def picker_at(self, rate: float = 1.0, *, spread: bool = True, **options: Any) -> object:
        if rate == 13:
            raise BadSetting("rate is 13: an unlucky number")
        return StubPicker(rate, **options)

    def caption(self, video: Any, *, picker: Any = None, candidates: int = 1, **_: Any) -> Caption:
        self.num_captions += 1
        picker = picker or StubPicker()
        count = round(4 * getattr(picker, "_picker", picker).rate)
        frames, picks = zip(*picker.pick(video.sample_evenly(count=count)), strict=True)
        self._wait()
        text = " ".join(str(number_of(frame.pixels(64))) for frame in frames)
        sentences = (Sentence(text, math.log(0.5)),) * candidates
        about = (len(frames), video.name, self.name, video.damage, math.log(0.5), 0.5, sentences, video.seconds)
        return Caption(text, picks, *about)

    def picked(self, video: Any, *, budget: int, exact: bool = False) -> Picked:
        frames = list(video.sample_evenly(count=budget))
        picks = [(frame, Pick(frame.index, frame.seconds, None, frame.number)) for frame in frames]
        return Picked(tuple(picks), len(frames), video.damage, video.name)

    def timeline(self, video: Any, *, fps: float = 2.0, **settings: Any) -> Iterator[Segment]:
        if settings.get("beam") == 13:
            raise BadSetting("beam is 13: an unlucky number")

        def read() -> Iterator[Segment]:
            for frame in video.sample_by_time(fps=fps):
                text = f"number {number_of(frame.pixels(64))}"
                pick = Pick(frame.index, frame.seconds, 0.5, frame.number)
                confidence = 0.49 if text == DOUBTFUL else 0.5
                is_sure = confidence >= (settings.get("min_confidence") or 0)
                about = (confidence, (pick,), None, video.name, self.name, None if is_sure else "it is doubtful")
                yield Segment(frame.seconds, frame.seconds + 1 / fps, text if is_sure else "", *about)
                self._wait()

        return read()

    def stream(self, frames: Any, *, picker: object, min_confidence: float | None) -> Iterator[Update]:
        frame = None
        for total, frame in enumerate(frames, start=1):
            pick = Pick(frame.index, frame.seconds)
            text = f"number {number_of(np.asarray(frame.pixels()))}"
            yield Update(frame.seconds, text, True, (pick,), total, total, 0.5, video="frames", model=self.name)
        if frame is not None:
            frame.pixels()  # a picker may pick a frame when it has seen all of them

    def _wait(self) -> None:
        self.num_waiting += 1
        assert self.gate.wait(30)
        self.num_waiting -= 1


class Running:
    """A service and its address."""

    def __init__(self, service: Service, captioner: Any, port: int) -> None:
        self.service = service
        self.captioner = captioner
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def client(self, token: str | None = TOKEN) -> Any:
        return client_example().Client(self.address, token=token, timeout=30)


def client_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_client", ROOT / "examples" / "client.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def serving(
    captioner: Any, limits: Limits, *, token: str | None = TOKEN, **options: Any
) -> Iterator[Running]:
    """options: those of `Service`."""
    service = Service(captioner, limits, **options)
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(service, host="127.0.0.1", token=token)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        until(lambda: server.started)
        yield Running(service, captioner, listening.getsockname()[1])
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join()
        listening.close()
        service.close()


def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


# --- Asking ---


def ask(
    running: Running, method: str, path: str, body: bytes = b"", headers: dict[str, str] = BEARER
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request(method, path, body or None, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


def error_of(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, _, content = answer
    return status, json.loads(content)["error"]["message"]


def form(**fields: object) -> tuple[bytes, dict[str, str]]:
    """A form without a file."""
    parts = (f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items())
    return ("".join(parts) + "--b--\r\n").encode(), {**BEARER, "Content-Type": "multipart/form-data; boundary=b"}


def uploads(running: Running) -> list[Path]:
    return list(running.service._folder.iterdir())
