"""The service under load, on this machine's loopback address only.

    python benchmarks/serving.py [--parts throughput overhead half-load soak] [--clips 40] [--seconds 300]

throughput: 8 clients send clips of ten seconds to `picknet serve`; `picknet caption --jobs` describes as many files,
and its start-up, measured with two files, is subtracted. The two take turns.

overhead: a request with a tiny clip against `captioner.caption` of the file, with the same model in the same process,
in turns.

half-load: clips arrive at random moments (Poisson, seed 0), half as many a second as 8 clients got answered.

soak: 64 clients for `--seconds`, good ones and bad ones: uploads that are broken off, slow ones, hostile files, bodies
of 2 GB, wrong tokens, streams and jobs that are left alone. Every caption has to be the right one and every answer a
documented one, and memory, open files and processes have to stay as they are.
"""

import collections
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import secrets
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from footage import make
from timing import ROOT, cpu_seconds, parser, save, summary

sys.path.insert(0, str(ROOT / "examples"))
from client import Client, ServiceError

PARTS = ("throughput", "overhead", "half-load", "soak")
NUM_CLIENTS = 8
NUM_SOAKING = 64
TOKEN = secrets.token_hex(16)
TIMEOUT = 300.0
MB = 1_000_000
SAMPLE_SECONDS = 1.0
"""How often memory, files and processes are counted."""


# --- The service ---


class Service:
    """`picknet serve` in a process of its own."""

    def __init__(self, temporary: Path, *options: str) -> None:
        environment = {**os.environ, "PICKNET_TOKEN": TOKEN, "TMPDIR": str(temporary)}
        command = [sys.executable, "-m", "picknet", "serve", "--port", "0", *options]
        self.log = (temporary.parent / "serve.log").open("w+")
        self._process = subprocess.Popen(command, env=environment, stderr=self.log)
        self.temporary = temporary
        self.address = ""
        while not self.address:
            if self._process.poll() is not None:
                raise SystemExit(f"the service did not start: {self.said()}")
            time.sleep(0.1)
            if found := re.search(r"http://\S+", self.said()):
                self.address = found[0]

    def said(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self.log.close()

    def client(self, token: str = TOKEN) -> Client:
        return Client(self.address, token=token, timeout=TIMEOUT)

    def cpu_seconds(self) -> float:
        """Of its processes that are alive."""
        return sum(_cpu_seconds(number) for number in [self._process.pid, *_children(self._process.pid)])

    def figures(self) -> dict[str, float]:
        """What it has at a time. Memory that processes share is counted once."""
        processes = [self._process.pid, *_children(self._process.pid)]
        memory = sum(_field(f"/proc/{number}/smaps_rollup", "Pss") for number in processes)
        uploads = [path for path in self.temporary.rglob("*") if path.is_file()]
        return {
            "memory, MB": memory / 1000,
            "processes": len(processes),
            "open files": len(os.listdir(f"/proc/{self._process.pid}/fd")),
            "threads": _field(f"/proc/{self._process.pid}/status", "Threads"),
            "uploads": len(uploads),
        }


def _children(number: int) -> list[int]:
    tasks = Path(f"/proc/{number}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _cpu_seconds(number: int) -> float:
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _field(path: str, name: str) -> float:
    with contextlib.suppress(OSError):  # a process that has ended meanwhile
        if found := re.search(rf"^{name}:\s+(\d+)", Path(path).read_text(), re.M):
            return float(found[1])
    return 0.0


@contextlib.contextmanager
def serving(work: Path, *options: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        temporary = Path(folder) / "tmp"
        temporary.mkdir()
        service = Service(temporary, *options)
        try:
            yield service
        finally:
            service.stop()


def at_once(count: int, work: Callable[[int], object]) -> float:
    """Seconds that `count` threads take, each with its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


# --- Speed ---


def of_command(clip: Path, count: int, jobs: int) -> tuple[float, float]:
    """Wall and CPU seconds."""
    command = [sys.executable, "-m", "picknet", "caption", *[str(clip)] * count, "--jobs", str(jobs)]
    start, cpu_start = time.perf_counter(), cpu_seconds()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start, cpu_seconds() - cpu_start


def throughput(work: Path, clip: Path, count: int, repeats: int) -> dict[str, Any]:
    jobs = len(os.sched_getaffinity(0))
    commands: list[tuple[float, float]] = []
    services: list[tuple[float, float]] = []
    with serving(work) as service:
        service.client().caption(clip)
        for _ in range(repeats):
            starting, whole = of_command(clip, 2, jobs), of_command(clip, count + 2, jobs)
            commands.append(((whole[0] - starting[0]) / count, (whole[1] - starting[1]) / count))
            numbers = iter(range(count))

            def ask(_: int, numbers: Iterator[int] = numbers) -> None:
                while next(numbers, None) is not None:
                    service.client().caption(clip)

            cpu_start = service.cpu_seconds() + cpu_seconds()
            wall = at_once(NUM_CLIENTS, ask)
            services.append((wall / count, (service.cpu_seconds() + cpu_seconds() - cpu_start) / count))
    return {
        "clients": NUM_CLIENTS,
        "clips": count,
        "caption --jobs, ms a clip": summary([1000 * wall for wall, _ in commands]),
        "service, ms a clip": summary([1000 * wall for wall, _ in services]),
        "caption --jobs, CPU ms a clip": summary([1000 * cpu for _, cpu in commands]),
        "service and clients, CPU ms a clip": summary([1000 * cpu for _, cpu in services]),
        "throughput against caption --jobs": {
            "wall": summary([a / b for (a, _), (b, _) in zip(commands, services, strict=True)]),
            "cpu": summary([a / b for (_, a), (_, b) in zip(commands, services, strict=True)]),
        },
    }


def overhead(tiny: Path, rounds: int) -> dict[str, Any]:
    """In one process: the server and its client are threads."""
    import picknet
    from picknet.serve.server import Server
    from picknet.serve.service import Limits, Service

    captioner = picknet.load()
    service = Service(captioner, Limits())
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(service, host="127.0.0.1", token=TOKEN)
    thread = threading.Thread(target=server.run, args=([listening],))
    service.decoders.start()
    thread.start()
    client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}", token=TOKEN)
    alone, asked = [], []
    try:
        for number in range(rounds + 5):
            start = time.perf_counter()
            expected = captioner.caption(tiny)
            middle = time.perf_counter()
            answer = client.caption(tiny)
            end = time.perf_counter()
            assert answer["caption"] == expected.text
            if number >= 5:  # all decoders have started
                alone.append(1000 * (middle - start))
                asked.append(1000 * (end - middle))
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join()
        service.close()
        listening.close()
    return {
        "rounds": rounds,
        "captioner.caption, ms": summary(alone),
        "request, ms": summary(asked),
        "overhead, ms": summary([b - a for a, b in zip(alone, asked, strict=True)]),
    }


def half_load(work: Path, clip: Path, count: int) -> dict[str, Any]:
    moments = random.Random(0)
    taken: list[float] = []

    def ask(service: Service) -> None:
        start = time.perf_counter()
        service.client().caption(clip)
        taken.append(time.perf_counter() - start)

    with serving(work) as service:
        numbers = iter(range(count // 2))
        service.client().caption(clip)
        full = at_once(NUM_CLIENTS, lambda _: [service.client().caption(clip) for _ in numbers]) / (count // 2)
        threads = []
        for _ in range(count):
            threads.append(threading.Thread(target=ask, args=(service,)))
            threads[-1].start()
            time.sleep(moments.expovariate(1 / (2 * full)))
        for thread in threads:
            thread.join()
    cuts = statistics.quantiles(taken, n=20, method="inclusive")
    return {
        "clips": count,
        "a second": 1 / (2 * full),
        "median, ms": 1000 * cuts[9],
        "95th percentile, ms": 1000 * cuts[18],
        "95th percentile against median": cuts[18] / cuts[9],
    }


# --- Soak ---


class Soak:
    """What 64 clients send, and what they get."""

    def __init__(self, service: Service, clips: dict[Path, str], seconds: float) -> None:
        self._service = service
        self._clips = clips
        self._end = time.monotonic() + seconds
        self._place = urlsplit(service.address)
        self._bodies = {clip: _form(clip.read_bytes(), clip.name) for clip in clips}
        self._large = next(iter(clips)).read_bytes()
        self.answers: collections.Counter[tuple[str, str]] = collections.Counter()
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self._behaviours = [
            *[self.caption] * 6, self.slow, self.broken_off, self.hostile, self.huge, self.endless, self.wrong_token,
            self.frames, self.timeline, self.cancelled, self.events_left, self.stream, self.stream_left, self.source,
        ]  # fmt: skip

    def run(self, number: int) -> None:
        choice = random.Random(number)
        while time.monotonic() < self._end:
            behaviour = choice.choice(self._behaviours)
            try:
                answer = behaviour(choice)
            except (OSError, http.client.HTTPException) as error:
                answer = type(error).__name__
            except Exception as error:  # noqa: BLE001 - the soak goes on, and reports it
                answer = "failed"
                self.failed.append(f"{behaviour.__name__}: {error!r}")
            self.answers[behaviour.__name__, str(answer)] += 1
            if str(answer) in ("429", "1013"):
                time.sleep(choice.uniform(0.5, 2.0))  # as Retry-After asks

    # Each returns the status of the answer, the code with which a WebSocket was closed, or what happened instead.

    def caption(self, choice: random.Random) -> int:
        clip = choice.choice(list(self._clips))
        status, content = self._post("/v1/captions", *self._bodies[clip])
        if status == 200:
            self._check(clip, json.loads(content)["caption"])
        return status

    def slow(self, choice: random.Random) -> int:
        """A client whose upload takes seconds."""
        clip = choice.choice(list(self._clips))
        body, headers = self._bodies[clip]
        connection = self._connect()
        connection.putrequest("POST", "/v1/captions")
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders()
        with contextlib.suppress(OSError):  # refused before all was sent
            for part in range(10):
                connection.send(body[part * len(body) // 10 : (part + 1) * len(body) // 10])
                time.sleep(0.2)
        status, content = _answer(connection)
        if status == 200:
            self._check(clip, json.loads(content)["caption"])
        return status

    def broken_off(self, choice: random.Random) -> str:
        body, headers = self._bodies[choice.choice(list(self._clips))]
        connection = self._connect()
        connection.putrequest("POST", choice.choice(["/v1/captions", "/v1/frames", "/v1/timelines"]))
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(body[: choice.randrange(len(body))])
        time.sleep(choice.uniform(0, 0.5))
        connection.close()
        return "left"

    def hostile(self, choice: random.Random) -> int:
        content = bytearray(self._large)
        kind = choice.randrange(4)
        if kind == 0:  # damaged anywhere, the index included
            for _ in range(choice.randrange(1, 200)):
                content[choice.randrange(len(content))] = choice.randrange(256)
        elif kind == 1:
            del content[choice.randrange(len(content)) :]
        elif kind == 2:
            content = bytearray(b"ffconcat version 1.0\nfile /etc/passwd\n")
        else:
            content = bytearray(choice.randbytes(10_000))
        return self._post("/v1/captions", *_form(bytes(content), "../../hostile.mp4"))[0]

    def huge(self, choice: random.Random) -> int:
        """A body of 2 GB, as its header says."""
        connection = self._connect()
        connection.putrequest("POST", "/v1/captions")
        for name, value in {**self._bodies[next(iter(self._clips))][1], "Content-Length": str(2 * 10**9)}.items():
            connection.putheader(name, value)
        connection.endheaders()
        with contextlib.suppress(OSError):
            connection.send(bytes(100_000))
        return _answer(connection)[0]

    def endless(self, choice: random.Random) -> int:
        """A body without a length, which goes on until it is refused."""
        body, headers = self._bodies[next(iter(self._clips))]
        connection = self._connect()
        pieces = itertools.chain([body[:200]], itertools.repeat(bytes(MB), 30))
        with contextlib.suppress(OSError):
            connection.request("POST", "/v1/captions", pieces, headers, encode_chunked=True)
        return _answer(connection)[0]

    def wrong_token(self, choice: random.Random) -> int:
        body, headers = self._bodies[next(iter(self._clips))]
        return self._post("/v1/captions", body, {**headers, "Authorization": "Bearer 0123456789abcdef"})[0]

    def frames(self, choice: random.Random) -> int:
        return self._post("/v1/frames", *self._bodies[choice.choice(list(self._clips))])[0]

    def timeline(self, choice: random.Random) -> int:
        return self._post("/v1/timelines", *self._bodies[choice.choice(list(self._clips))])[0]

    def cancelled(self, choice: random.Random) -> int:
        clip = choice.choice(list(self._clips))
        status, content = self._post("/v1/timelines", *_form(clip.read_bytes(), clip.name, wait="0"))
        if status == 202:
            with contextlib.suppress(ServiceError):
                self._service.client().cancel(json.loads(content)["id"])
        return status

    def events_left(self, choice: random.Random) -> int:
        """Events that are read for a moment."""
        body, headers = self._bodies[choice.choice(list(self._clips))]
        connection = self._connect()
        connection.request("POST", "/v1/captions/events", body, headers)
        answer = connection.getresponse()
        answer.read1(1000)
        connection.close()
        return answer.status

    def stream(self, choice: random.Random, *, is_left: bool = False) -> int | str:
        """The bytes of a video on a WebSocket."""
        from websockets.exceptions import ConnectionClosed
        from websockets.sync.client import connect

        address = self._service.address.replace("http", "ws") + "/v1/stream"
        content = choice.choice(list(self._clips)).read_bytes()
        try:
            with connect(address, additional_headers={"Authorization": f"Bearer {TOKEN}"}, close_timeout=5) as stream:
                for start in range(0, len(content), 20_000):
                    stream.send(content[start : start + 20_000])
                if is_left:
                    return "left"
                stream.send("end")
                while True:
                    stream.recv(timeout=TIMEOUT)
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else "closed"

    def stream_left(self, choice: random.Random) -> int | str:
        return self.stream(choice, is_left=True)

    def source(self, choice: random.Random) -> int:
        body = '--b\r\nContent-Disposition: form-data; name="source"\r\n\r\nhttp://169.254.169.254/\r\n--b--\r\n'
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "multipart/form-data; boundary=b"}
        return self._post("/v1/captions", body.encode(), headers)[0]

    def _check(self, clip: Path, caption: str) -> None:
        if caption != self._clips[clip]:
            self.wrong.append(f"{clip.name}: {caption!r}")

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._place.hostname or "", self._place.port, timeout=TIMEOUT)

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = self._connect()
        with contextlib.suppress(OSError):  # refused before all was sent: the answer is there nevertheless
            connection.request("POST", path, body, headers)
        return _answer(connection)


def _form(content: bytes, name: str, **fields: str) -> tuple[bytes, dict[str, str]]:
    boundary = secrets.token_hex(8)
    parts = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    )
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = parts.encode() + head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return body, {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": f"multipart/form-data; boundary={boundary}",
    }


def _answer(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    try:
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


EXPECTED = {
    "caption": "200 429", "slow": "200 429", "broken_off": "left", "hostile": "200 422 429", "huge": "413 429",
    "endless": "413 429", "wrong_token": "401", "frames": "200 429", "timeline": "200 202 429",
    "cancelled": "202 429", "events_left": "200 429", "stream": "1000 1013", "stream_left": "left 1013",
    "source": "400 429",
}  # fmt: skip
"""Behaviour -> the answers that docs/service.md has for it."""


def soak(work: Path, clips: list[Path], seconds: float) -> dict[str, Any]:
    import picknet

    captioner = picknet.load()
    captions = {clip: captioner.caption(clip).text for clip in clips}
    series: list[dict[str, float]] = []
    is_over = threading.Event()
    with serving(work, "--max-upload", "20", "--queue", "32") as service:
        service.client().caption(clips[0])

        def sample() -> None:
            while not is_over.wait(SAMPLE_SECONDS):
                series.append(service.figures())

        sampling = threading.Thread(target=sample)
        sampling.start()
        soaking = Soak(service, captions, seconds)
        at_once(NUM_SOAKING, soaking.run)
        is_over.set()
        sampling.join()
        for _ in range(60):  # what was left alone is finished
            time.sleep(1)
            if _idle(service):
                break
        after = service.figures()
        metrics = service.client()._request("GET", "/metrics").read().decode()
        log = service.said()
    unexpected = {
        f"{name} {answer}": count
        for (name, answer), count in soaking.answers.items()
        if answer not in EXPECTED[name].split()
    }
    half = len(series) // 2
    return {
        "clients": NUM_SOAKING,
        "seconds": seconds,
        "answers": {f"{name} {answer}": count for (name, answer), count in sorted(soaking.answers.items())},
        "captions": sum(soaking.answers[name, "200"] for name in ("caption", "slow")),
        "wrong captions": len(soaking.wrong),
        "answers that are not documented": unexpected,
        "failures": soaking.failed[:10],
        "growth from the second quarter to the last": {
            key: _mean(series[3 * half // 2 :], key) - _mean(series[half // 2 : half], key) for key in after
        },
        "mean of the second quarter": {key: _mean(series[half // 2 : half], key) for key in after},
        "after": after,
        "open requests after": _metric(metrics, "picknet_open_requests"),
        "bugs in the log": log.count("Traceback"),
        "log": log[-2000:] if "Traceback" in log else "",
    }


def _idle(service: Service) -> bool:
    metrics = service.client()._request("GET", "/metrics").read().decode()
    return not any(_metric(metrics, f"picknet_open_{what}") for what in ("requests", "jobs", "streams"))


def _metric(metrics: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", metrics, re.M)
    return float(found[1]) if found else float("nan")


def _mean(series: list[dict[str, float]], key: str) -> float:
    return statistics.fmean(figures[key] for figures in series) if series else 0.0


def main() -> None:
    options = parser(__doc__, repeats=3)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--clips", type=int, default=40)
    options.add_argument("--seconds", type=float, default=300, help="of the soak")
    arguments = options.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    clip = make(arguments.work, width=320, height=240, seconds=10)
    tiny = make(arguments.work, width=128, height=96, seconds=1)
    samples = [tiny, clip, *(make(arguments.work, width=320, height=240, seconds=2, source=ROOT / "samples" / name)
                             for name in ("board.mp4", "moon.mp4"))]  # fmt: skip
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "throughput": lambda: throughput(arguments.work, clip, arguments.clips, arguments.repeats),
        "overhead": lambda: overhead(tiny, 20 * arguments.repeats),
        "half-load": lambda: half_load(arguments.work, clip, 3 * arguments.clips),
        "soak": lambda: soak(arguments.work, samples, arguments.seconds),
    }
    for part in arguments.parts:
        save(f"serving-{part}", parts[part](), f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
