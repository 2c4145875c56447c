"""What the service does, without HTTP: one model, decoders in child processes, a few threads, and their figures."""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from picknet.captioner import Captioner
from picknet.errors import BadSetting, PicknetError
from picknet.files import temporary_folder
from picknet.picking.budget import MAX_BUDGET
from picknet.picking.picker import Picker, glance_kind
from picknet.results import Caption, Segment
from picknet.serve.decoding import GIB, Check, Decoders, RemoteVideo
from picknet.serve.fetching import STOPPING, Hosts
from picknet.serve.jobs import Job, Jobs
from picknet.serve.telling import Tell, ToldPicker, tell_glance
from picknet.show.frames import anthropic_parts, encode, openai_parts
from picknet.video.download import Deadline
from picknet.video.source import is_video_file, without_password
from picknet.workers import num_cores

MAX_FRAMES = 64
"""Of an answer with pictures."""
SAMPLES = Path(__file__).parent / "samples"
MAX_SIDE = 2048
"""Pixels of the longer side of a picture in an answer."""
FRAME_FORMATS = ("base64", "json", "openai", "anthropic")
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Seconds, for histograms."""


class TooMuchVideo(PicknetError):
    """A video that is longer than the service takes."""


class NoSpace(PicknetError):
    """An upload that cannot be stored, mostly because the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the upload cannot be stored ({error.strerror or error}); try again later")


class NoSuchFile(PicknetError):
    """A path that is not a file under the root folder."""


@dataclass(frozen=True)
class Limits:
    """What one client may ask for, and all of them together."""

    workers: int = 0
    """Requests at work at a time; 0 for as many as there are cores."""
    queue: int = 16
    """Requests that may wait beyond those at work, and as many timelines."""
    upload: int = GIB
    """Bytes of a request."""
    duration: float = 4 * 3600.0
    """Seconds of a video."""
    timeout: float = 60.0
    """Seconds that a caption or the frames of a video may take."""
    job_timeout: float = 3600.0
    """Seconds that a timeline may take."""
    memory: int = 2 * GIB
    """Bytes that a decoder may allocate."""

    @property
    def num_workers(self) -> int:
        """By default one more than cores, which works while another waits for its decoder."""
        return self.workers or num_cores() + 1

    @property
    def num_job_threads(self) -> int:
        """Few, so that long films leave cores to captions."""
        return max(self.num_workers // 2, 1)


class Service:
    """A captioner for many clients. Its methods block, and may be called from any thread."""

    def __init__(
        self,
        captioner: Captioner,
        limits: Limits | None = None,
        *,
        root: Path | None = None,
        allow_sources: Iterable[str] = (),
        samples: Path = SAMPLES,
    ) -> None:
        """root: clients may name files in this folder, instead of sending them. allow_sources: hosts at which they may
        name addresses. samples: folder of videos that the page offers.
        """
        self.captioner = captioner
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.jobs = Jobs(threads=self.limits.num_job_threads, queue=self.limits.queue)
        self.is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._num_at_work = 0
        self._streams = threading.BoundedSemaphore(self.limits.num_workers)
        self._root = root.resolve() if root else None
        self._hosts = Hosts(allow_sources)
        self.samples = {path.name: path for path in sorted(samples.iterdir()) if is_video_file(path)}
        """By their names. They are the only ones that are possible, so that no name of a client becomes a path."""
        num_decoders = self.limits.num_workers + self.limits.num_job_threads
        self.decoders = Decoders(num_decoders, memory=self.limits.memory)
        self.stream_decoders = Decoders(self.limits.num_workers, memory=self.limits.memory)
        self.pool = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="picknet request")
        self.stream_pool = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="picknet stream")
        # Of its own, since a slow server must hold up nobody else.
        self.fetch_pool = ThreadPoolExecutor(self.limits.num_workers, thread_name_prefix="picknet fetch")
        self._folder = temporary_folder(Path(tempfile.gettempdir(), "uploads"))  # only its owner may look into it
        self.metrics.open_jobs.set_function(lambda: self.jobs.num_open)

    def stop(self) -> None:
        """Take no new work, and end downloads, timelines and streams; captions that are at work are finished."""
        self.is_stopping.set()
        self.jobs.stop(STOPPING)
        self._hosts.close()

    def close(self) -> None:
        self.stop()
        self.jobs.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.stream_pool.shutdown(wait=True, cancel_futures=True)
        self.fetch_pool.shutdown(wait=True, cancel_futures=True)
        self.decoders.close()
        self.stream_decoders.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def take_stream(self) -> bool:
        """Whether one more live stream is possible; if so, it counts until `release_stream`."""
        return self._streams.acquire(blocking=False)

    def release_stream(self) -> None:
        self._streams.release()

    # --- Videos ---

    def stored(self, upload: IO[bytes], name: str | None) -> "Clip":
        """An upload, copied to a file whose name the client does not choose."""
        try:
            with self._new_file() as file:
                upload.seek(0)
                shutil.copyfileobj(upload, file, 1 << 20)
        except OSError as error:
            raise NoSpace(error) from error
        return Clip(file.name, name=_shown(name) or "upload", is_upload=True)

    def deadline(self) -> Deadline:
        """For fetching a video."""
        seconds = self.limits.timeout
        return Deadline(seconds, f"took longer than {seconds:g} s, which is the limit")

    def fetched(self, address: str, deadline: Deadline) -> "Clip":
        """The video at an address, downloaded, if its host is one of those that are allowed."""
        self._hosts.check(address)
        with self._new_file() as file:
            self._hosts.fetch(address, file, max_bytes=self.limits.upload, deadline=deadline)
        return Clip(file.name, name=without_password(address), is_upload=True)

    @contextlib.contextmanager
    def _new_file(self) -> "Iterator[IO[bytes]]":
        """A file in the folder of uploads; deleted if the block fails."""
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            try:
                yield file
            except BaseException:
                os.unlink(file.name)
                raise

    def under_root(self, path: str) -> "Clip":
        """A file in the root folder, links followed."""
        if self._root is None:
            raise NoSuchFile("path: this service was started without --root, so it reads no files; send the video")
        try:
            found = (self._root / path).resolve(strict=True)
            is_inside = found.is_relative_to(self._root) and found.is_file()
        except (OSError, ValueError, RuntimeError):
            is_inside = False
        if not is_inside:
            raise NoSuchFile(f"{_shown(path)}: no such file under the service's root folder")
        return Clip(str(found), name=_shown(path) or "file")

    # --- Work ---

    def caption(
        self,
        clip: "Clip",
        *,
        rate: float | None = None,
        k: int | None = None,
        num_frames: int | None = None,
        beam: int | None = None,
        candidates: int = 1,
        min_confidence: float | None = None,
        tell: Tell | None = None,
        check: Check = lambda: None,
    ) -> dict[str, Any]:
        """What `picknet caption --format json` prints.

        tell: called with "glance" for each frame that is looked at, and with "pick" for each that is picked, and what
        is known about it. check: raises an error once nobody wants the caption any more.
        """
        picker = self._picker(rate, k, tell)
        with self._at_work("captions", clip, picker, check=check) as video:
            caption: Caption = self.captioner.caption(
                video,
                picker=picker,
                num_frames=num_frames,
                beam=beam,
                candidates=candidates,
                min_confidence=min_confidence,
            )
        self.metrics.picks.inc(caption.num_picks)
        return caption.to_dict()

    def frames(
        self,
        clip: "Clip",
        *,
        budget: int = 8,
        exact: bool = False,
        format: str = "base64",
        image_format: str = "jpeg",
        max_side: int = MAX_SIDE,
        check: Check = lambda: None,
    ) -> Any:
        """What `picknet pick --budget` prints in these formats; with base64 a list of its lines.

        check: as in `caption`.
        """
        if format not in FRAME_FORMATS:
            raise BadSetting(f"format is {format!r}: {', '.join(FRAME_FORMATS)} are possible")
        most = MAX_BUDGET if format == "json" else MAX_FRAMES
        if not 1 <= budget <= most:
            raise BadSetting(f"budget is {budget}: 1 to {most:,} frames are possible in this format")
        options: Mapping[str, Any] = {"image_format": image_format, "max_side": max_side}
        with self._at_work("frames", clip, None, check=check) as video:
            picked = self.captioner.picked(video, budget=budget, exact=exact)
            self.metrics.picks.inc(picked.num_picks)
            if format == "json":
                return {**picked.to_dict(), "picker": "budget"}
            if format != "base64":
                return (openai_parts if format == "openai" else anthropic_parts)(picked.images(), **options)
            lines = []
            for frame in picked.images():
                encoded = encode(frame, **options)
                size = {"width": encoded.width, "height": encoded.height}
                image = {"media_type": encoded.media_type, "data": encoded.base64}
                lines.append({"video": picked.video, **frame.pick.to_dict(), **size, **image})
            return lines

    def timeline(
        self,
        clip: "Clip",
        *,
        fps: float = 2.0,
        rate: float | None = None,
        beam: int | None = None,
        min_confidence: float | None = None,
    ) -> Job:
        """A job whose segments are those of `picknet timeline`. The clip is deleted at its end."""
        picker = self._picker(rate, None)
        # Bad settings are an error at once, and not of the job.
        self.captioner.timeline([], fps=fps, beam=beam, min_confidence=min_confidence)

        def work(job: Job) -> Iterator[Segment]:
            with self._at_work("timelines", clip, picker, job) as video:
                job.begin, job.total_seconds = video.begin, video.seconds
                segments = self.captioner.timeline(
                    video, fps=fps, picker=picker, beam=beam, min_confidence=min_confidence
                )
                for segment in segments:
                    self.metrics.picks.inc(segment.num_picks)
                    yield segment

        return self.jobs.submit(clip.name, work, clip.delete)

    def _picker(self, rate: float | None, k: int | None, tell: Tell | None = None) -> Picker | None:
        if rate is not None and k is not None:
            raise BadSetting(f"rate is {rate:g} and k is {k}: one of them is possible")
        options: dict[str, Any] = {"on_glance": partial(tell_glance, tell)} if tell else {}
        if k is not None:
            picker: Picker = self.captioner.counted_picker(k, **options)
        elif rate is not None or tell:
            picker = self.captioner.picker_at(1.0 if rate is None else rate, **options)
        else:
            return None
        return ToldPicker(picker, tell) if tell else picker

    @contextlib.contextmanager
    def _at_work(
        self,
        what: str,
        clip: "Clip",
        picker: Picker | None,
        job: Job | None = None,
        check: Check = lambda: None,
    ) -> Iterator[RemoteVideo]:
        start = time.monotonic()
        with self._counted() as num_at_work, self.decoders.video(
            clip.path,
            name=clip.name,
            seconds=self.limits.job_timeout if job else self.limits.timeout,
            glance=glance_kind(picker or self.captioner.picker),
            threads=max(num_cores() // num_at_work, 1),
            check=job.check if job else check,
            on_frame=_progress(job),
        ) as video:
            if (video.seconds or 0.0) > self.limits.duration:
                lasts, limit = f"{video.seconds:.0f} s", f"{self.limits.duration:g} s"
                raise TooMuchVideo(f"{clip.name}: lasts {lasts}; at most {limit} are possible")
            yield video
        decoding = video.decoding_seconds
        self.metrics.stage_seconds.labels(what, "decode").observe(decoding)
        self.metrics.stage_seconds.labels(what, "describe").observe(time.monotonic() - start - decoding)


    @contextlib.contextmanager
    def _counted(self) -> Iterator[int]:
        """The number of videos that are at work, this one among them: they share the cores."""
        with self._lock:
            self._num_at_work += 1
            count = self._num_at_work
        try:
            yield count
        finally:
            with self._lock:
                self._num_at_work -= 1


@dataclass(frozen=True)
class Clip:
    """A video file to work on."""

    path: str
    name: str
    """What results call it."""
    is_upload: bool = False

    def delete(self) -> None:
        """Delete it if it was uploaded."""
        if self.is_upload:
            Path(self.path).unlink(missing_ok=True)


class Metrics:
    """Figures for Prometheus."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "picknet_requests", "Requests answered.", ["endpoint", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "picknet_request_seconds", "From a request to its answer.", ["endpoint"], buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self.stage_seconds = Histogram(
            "picknet_stage_seconds", "Parts of the work for a video: wait, decode, describe.", ["endpoint", "stage"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self.picks = Counter("picknet_picks", "Frames picked.", registry=registry)
        self.open_requests = Gauge("picknet_open_requests", "Requests at work or waiting.", registry=registry)
        self.open_jobs = Gauge("picknet_open_jobs", "Timelines at work or waiting.", registry=registry)
        self.open_streams = Gauge("picknet_open_streams", "Live streams.", registry=registry)


def _progress(job: Job | None) -> Callable[[float], object]:
    def on_frame(seconds: float) -> None:
        assert job
        job.seconds = seconds

    return on_frame if job else lambda seconds: None


def _shown(name: str | None) -> str:
    """A name from a client, for results and messages: one short line without folders."""
    last = (name or "").replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(character for character in last if character.isprintable())[:120]
