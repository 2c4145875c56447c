"""The addresses of the service: what clients send, and what they get. The work is done in `service.py`."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, FastAPI, File, Form, Query, Request, Response, UploadFile, WebSocket
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError, ValidationException, WebSocketRequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from picknet import timeline
from picknet.captioner import MAX_CANDIDATES
from picknet.errors import PicknetError, with_value
from picknet.model.confidence import DOUBTFUL
from picknet.picking.budget import MAX_BUDGET
from picknet.results import Segment
from picknet.serve.events import told
from picknet.serve.examples import CAPTION, FRAMES, JOB, MODEL, TIMELINE
from picknet.serve.fetching import STOPPING
from picknet.serve.guard import Refused, error_body, status_of
from picknet.serve.jobs import Cancelled, Job, State
from picknet.serve.service import MAX_SIDE, Clip, NoSpace, Service
from picknet.serve.streaming import follow, refuse
from picknet.serve.web import add_page

Result = TypeVar("Result")

POLL_SECONDS = 0.1
"""How often an answer that waits for a job looks at it."""
GONE = "the client has gone"
MAX_SAMPLES = 1000
MAX_BEAM = 50
MIN_FPS = 0.001
TimelineFormat = Literal["json", "jsonl", "csv", "srt", "vtt", "text"]
MEDIA_TYPES: dict[TimelineFormat, str] = {
    "json": "application/json",
    "jsonl": "application/jsonl",
    "csv": "text/csv",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "text": "text/plain",
}


@dataclass(frozen=True)
class SentVideo:
    """The fields of a form that say which video is meant. One of them is needed."""

    file: Annotated[UploadFile | None, File(description="The video.")] = None
    path: Annotated[str | None, Form(description="Or its path under the service's --root.")] = None
    source: Annotated[
        str | None,
        Form(max_length=4096, description="Or its http(s) address, at a host that --allow-sources lists."),
    ] = None


Sent = Annotated[SentVideo, Depends()]
Rate = Annotated[float | None, Form(gt=0, le=100, description="The dial: 2 picks more frames, 0.5 fewer.")]
Beam = Annotated[int | None, Form(ge=1, le=MAX_BEAM, description="Beam width; 1 is greedy.")]
MinConfidence = Annotated[
    float | None, Form(ge=0, le=1, description="Leave out a caption with a lower confidence; `not_sure` says why.")
]


@dataclass(frozen=True)
class CaptionSettings:
    """The other fields of a form that asks for a caption."""

    candidates: Annotated[int, Form(ge=1, le=MAX_CANDIDATES, description="Number of sentences.")] = 1
    min_confidence: MinConfidence = None
    rate: Rate = None
    k: Annotated[int | None, Form(ge=1, le=MAX_SAMPLES, description="Exactly this many picks.")] = None
    frames: Annotated[int | None, Form(ge=1, le=MAX_SAMPLES, description="Frames to sample.")] = None
    beam: Beam = None

    def arguments(self) -> dict[str, Any]:
        """Those of `Service.caption`."""
        return {("num_frames" if name == "frames" else name): value for name, value in asdict(self).items()}


def create_app(service: Service) -> FastAPI:
    """The application, without the checks of `guard.py`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.stop()

    app = FastAPI(
        title="picknet",
        description="Describe a video from the few frames that matter.",
        version="1",
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(_only_known_settings)],
        responses={status: _documented(text) for status, text in _REFUSALS.items()},
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(WebSocketRequestValidationError, _bad_request)
    app.add_exception_handler(PicknetError, _picknet_error)
    app.add_exception_handler(Exception, _internal_error)
    _add_videos(app, service)
    _add_model(app, service)
    _add_samples(app, service)
    _add_jobs(app, service)
    _add_health(app, service)
    add_page(app)
    app.openapi = partial(_with_token, app.openapi)  # type: ignore[method-assign]

    @app.websocket("/v1/stream")
    async def stream(
        socket: WebSocket,
        fps: Annotated[float | None, Query(ge=MIN_FPS, le=1000)] = None,
        rate: Annotated[float, Query(gt=0, le=100)] = 1.0,
        min_confidence: Annotated[float | None, Query(ge=0, le=1)] = None,
    ) -> None:
        await follow(service, socket, fps=fps, rate=rate, min_confidence=min_confidence)

    return app


def _with_token(openapi: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The document for programs, which says how to send the token, if the service has one."""
    document = openapi()
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document | {"security": [{}, {"token": []}]}


async def _only_known_settings(request: HTTPConnection) -> None:
    """Refuse a form or an address with a setting that would be ignored: a misspelt one would otherwise seem to have
    been used. The page and the addresses for machines may be asked with anything behind a question mark.
    """
    if not request.url.path.startswith("/v1/"):
        return
    known = _settings(request.scope["route"].dependant)
    given, noun = [name for name, _ in request.query_params.multi_items()], "setting"
    if isinstance(request, Request) and request.method == "POST":
        for name in given:
            raise Refused(400, f"{name[:100]}: a setting is a field of the form, not a part of the address")
        form = (await request.form()).multi_items()
        given, noun = [name for name, _ in form], "field"
        for name, value in form:
            if name == "file" and isinstance(value, str):
                raise Refused(400, "file: a text, where a file is needed, as in curl -F file=@clip.mp4")
            if name != "file" and name in known and not isinstance(value, str):
                raise Refused(400, f"{name}: a file, where a text is needed; a video is sent as file")
    for name, times in Counter(given).items():
        if name not in known:
            raise Refused(400, f"{name[:100]}: no such {noun}; possible: {', '.join(known) or 'none'}")
        if times > 1:
            raise Refused(400, f"{name}: given {times} times; a {noun} has one value")


def _settings(dependant: Dependant) -> list[str]:
    """The fields of a form, or the settings behind a question mark, that an address takes, those of its parts first."""
    names = [name for part in dependant.dependencies for name in _settings(part)]
    return names + [field.alias for field in (*dependant.body_params, *dependant.query_params)]


# --- Videos ---


def _add_videos(app: FastAPI, service: Service) -> None:
    @app.post("/v1/captions", responses={200: _example("The caption, as `picknet caption --format json`.", CAPTION)})
    async def captions(
        request: Request, sent: Sent, settings: Annotated[CaptionSettings, Depends()]
    ) -> JSONResponse:
        """One sentence about a video."""
        work = partial(service.caption, **settings.arguments())
        return JSONResponse(await _worked(service, "captions", sent, request, work))

    @app.post(
        "/v1/captions/events",
        response_class=StreamingResponse,
        responses={200: _content("`glance`, `pick`, at last `caption` or `error`.", [EventSourceResponse.media_type])},
    )
    async def caption_events(
        request: Request, sent: Sent, settings: Annotated[CaptionSettings, Depends()]
    ) -> Response:
        """The same as server-sent events: `glance` with each frame that is looked at, `pick` with each that is picked,
        both with a picture, and at last `caption`, or `error`.
        """
        clip = await _clip(service, sent, request)
        events = told(service, clip, settings.arguments())
        return StreamingResponse(events, media_type=EventSourceResponse.media_type)

    @app.post("/v1/frames", responses={200: _example("The frames, as `picknet pick --budget`.", FRAMES)})
    async def frames(
        request: Request,
        sent: Sent,
        budget: Annotated[int, Form(ge=1, le=MAX_BUDGET, description="At most this many frames.")] = 8,
        exact: Annotated[bool, Form(description="Exactly as many, even if little happens.")] = False,
        format: Annotated[
            Literal["base64", "json", "openai", "anthropic"],
            Form(
                description="base64: a list of frames with their image; json: their times alone; openai, anthropic: "
                "content of a chat message.",
            ),
        ] = "base64",
        image_format: Annotated[Literal["jpeg", "png"], Form()] = "jpeg",
        max_side: Annotated[
            int, Form(ge=1, le=MAX_SIDE, description="Shrink images with a longer side.")
        ] = MAX_SIDE,
    ) -> JSONResponse:
        """The few frames that show what happens."""
        settings: dict[str, Any] = {
            "budget": budget, "exact": exact, "format": format, "image_format": image_format, "max_side": max_side
        }  # fmt: skip
        return JSONResponse(await _worked(service, "frames", sent, request, partial(service.frames, **settings)))

    @app.post(
        "/v1/timelines",
        responses={
            200: _TIMELINE,
            202: _example("It takes longer than `wait`: a job. `Location` is its address.", JOB),
        },
    )
    async def timelines(
        request: Request,
        sent: Sent,
        format: Annotated[TimelineFormat, Form()] = "json",
        fps: Annotated[float, Form(ge=MIN_FPS, le=30, description="Frames to glance at per second.")] = 2.0,
        rate: Rate = None,
        beam: Beam = None,
        min_confidence: MinConfidence = None,
        wait: Annotated[float, Form(ge=0, le=60, description="Seconds after which the answer is a job.")] = 20.0,
    ) -> Response:
        """A sentence for each scene of a film."""
        clip = await _clip(service, sent, request)
        try:
            job = service.timeline(clip, fps=fps, rate=rate, beam=beam, min_confidence=min_confidence)
        except BaseException:
            clip.delete()
            raise
        until = time.monotonic() + wait
        while not job.is_over.is_set():
            if await request.is_disconnected():
                job.cancel(GONE)  # nobody else knows its id
                break
            if time.monotonic() >= until:
                break
            await asyncio.sleep(POLL_SECONDS)
        if job.is_over.is_set():
            return _timeline(job, format, service.captioner.name)
        return JSONResponse(job.to_dict(), 202, {"location": f"/v1/jobs/{job.id}"})


async def _clip(service: Service, sent: SentVideo, request: Request) -> Clip:
    if [sent.file, sent.path, sent.source].count(None) != 2:
        raise Refused(
            400, "a form with one of these is needed: a file (the video), a path (under the service's root folder), a "
            "source (its address)"
        )  # fmt: skip
    if sent.file is not None:
        return await asyncio.to_thread(service.stored, sent.file.file, sent.file.filename)
    if sent.source is not None:
        return await _fetched(service, sent.source, request)
    assert sent.path is not None
    return await asyncio.to_thread(service.under_root, sent.path)


async def _fetched(service: Service, source: str, request: Request) -> Clip:
    """The video at an address."""
    deadline = service.deadline()
    fetching = service.fetch_pool.submit(service.fetched, source, deadline)
    return await _unless_gone(fetching, request, on_gone=lambda: deadline.end(GONE))


async def _worked(
    service: Service, what: str, sent: SentVideo, request: Request, work: Callable[..., Result]
) -> Result:
    """What the work makes of the video, done in turn by the service's threads."""
    clip = await _clip(service, sent, request)
    start = time.monotonic()
    is_gone = threading.Event()

    def check() -> None:
        if is_gone.is_set():
            raise Cancelled(f"{clip.name}: {GONE}")

    def timed() -> Result:
        service.metrics.stage_seconds.labels(what, "wait").observe(time.monotonic() - start)
        return work(clip, check=check)

    working = service.pool.submit(timed)
    try:
        return await _unless_gone(working, request, on_gone=is_gone.set)
    finally:
        clip.delete()


async def _unless_gone(working: Future[Result], request: Request, *, on_gone: Callable[[], object]) -> Result:
    """What a thread works out. A client that goes away ends the work, which would hold up that of others.

    on_gone: tells the thread, unless its turn has not come.
    """
    waiting = asyncio.wrap_future(working)
    while not (await asyncio.wait({waiting}, timeout=POLL_SECONDS))[0]:
        if await request.is_disconnected():
            on_gone()
            if working.cancel():
                raise Cancelled(GONE)
    return waiting.result()


def _add_model(app: FastAPI, service: Service) -> None:
    @app.get("/v1/model", responses={200: _example("As far as clients need it.", MODEL)})
    async def model() -> JSONResponse:
        """The model's name, and the confidence below which a caption is doubtful: null where captions have none."""
        has_confidence = service.captioner.confidence_note is None
        return JSONResponse({"model": service.captioner.name, "doubtful_below": DOUBTFUL if has_confidence else None})


def _add_samples(app: FastAPI, service: Service) -> None:
    @app.get("/v1/samples", responses={200: _example("Their names.", ["cockatoo.mp4"])})
    async def samples() -> list[str]:
        """The videos that the page offers to try."""
        return list(service.samples)

    @app.get(
        "/v1/samples/{name}",
        response_class=FileResponse,
        responses={
            200: _content("The video.", ["video/*"]),
            206: _content("The bytes that `Range` names.", ["video/*"]),
            416: _documented("It has no such bytes."),
        },
    )
    async def sample(name: str) -> FileResponse:
        """One of them."""
        if name not in service.samples or not service.samples[name].is_file():
            raise Refused(404, "no such sample: /v1/samples lists them")
        return _Sample(service.samples[name], headers={"cache-control": "private, max-age=3600"})


class _Sample(FileResponse):
    """A file; a Range that it does not have is told like any other error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = False

        async def checked_send(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                is_refused = True
                refusal = _error(message["status"], "Range: bytes of the file are needed, such as bytes=0-99")
                await refusal(scope, receive, send)
            elif not is_refused:
                await send(message)

        await super().__call__(scope, receive, checked_send)


# --- Jobs ---


def _add_jobs(app: FastAPI, service: Service) -> None:
    def found(id: str) -> Job:
        job = service.jobs.get(id)
        if job is None:
            raise Refused(404, "no such job: finished ones are forgotten after an hour")
        return job

    Found = Annotated[Job, Depends(found)]

    @app.get("/v1/jobs/{id}", responses={200: _example("Where it stands.", JOB)})
    async def job_state(job: Found) -> JSONResponse:
        """How far a job is."""
        return JSONResponse(job.to_dict())

    @app.get("/v1/jobs/{id}/result", responses={200: _TIMELINE, 409: _documented("No result, or not yet.")})
    async def job_result(job: Found, format: Annotated[TimelineFormat, Query()] = "json") -> Response:
        """The timeline of a finished job."""
        if not job.is_over.is_set():
            raise Refused(409, f"the job is {job.state}: ask again when it is done")
        return _timeline(job, format, service.captioner.name)

    @app.delete("/v1/jobs/{id}", responses={200: _example("Where it stood.", JOB)})
    async def job_cancelled(job: Found) -> JSONResponse:
        """Cancel a job."""
        job.cancel()
        return JSONResponse(job.to_dict())

    @app.get("/v1/jobs/{id}/events", response_class=EventSourceResponse)
    async def job_events(job: Found) -> AsyncIterator[ServerSentEvent]:
        """Server-sent events: `segment` with each segment, `progress` with the job, at last `end` with the job."""
        async for event in _events(job):
            yield event


async def _events(job: Job) -> AsyncIterator[ServerSentEvent]:
    num_sent, last = 0, None
    while True:
        is_over = job.is_over.is_set()  # before the segments: none comes after it
        for segment in job.segments[num_sent:]:
            num_sent += 1
            yield ServerSentEvent(event="segment", data=segment.to_dict())
        state = job.to_dict()
        if is_over:
            yield ServerSentEvent(event="end", data=state)
            return
        if state != last:
            last = state
            yield ServerSentEvent(event="progress", data=state)
        await asyncio.sleep(POLL_SECONDS)


def _timeline(job: Job, format: TimelineFormat, model: str) -> Response:
    if job.state is State.cancelled:
        raise Refused(503 if job.reason == STOPPING else 409, str(job.error))
    if job.error is not None:
        raise job.error
    writers: dict[TimelineFormat, Callable[[Iterable[Segment]], Iterator[str]]] = {
        "json": partial(timeline.as_json, video=job.video, model=model),
        "jsonl": timeline.as_jsonl,
        "csv": partial(timeline.as_csv, video=job.video),
        "srt": lambda segments: timeline.as_srt(timeline.as_played(segments, begin=job.begin)),
        "vtt": lambda segments: timeline.as_vtt(timeline.as_played(segments, begin=job.begin)),
        "text": timeline.as_text,
    }
    return Response("".join(writers[format](job.segments)), media_type=MEDIA_TYPES[format])


# --- Health ---


def _add_health(app: FastAPI, service: Service) -> None:
    @app.head("/healthz", response_class=PlainTextResponse, include_in_schema=False)
    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Whether the process answers."""
        return "ok\n"

    @app.head("/readyz", response_class=PlainTextResponse, include_in_schema=False)
    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> str:
        """Whether it takes work: not while it stops."""
        if service.is_stopping.is_set():
            raise Refused(503, STOPPING)
        return "ok\n"

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


# --- Errors ---


_REFUSALS = {
    400: "A setting or a form that is not possible.",
    401: "No token, or a wrong one.",
    403: "A host name or a page of another site.",
    404: "No such file, job or address.",
    408: "The upload stalled.",
    413: "The upload is too large.",
    422: "The video cannot be read, is too long, or takes too long.",
    429: "Too many requests; `Retry-After` says when to try again.",
    500: "A bug.",
    503: "The service is stopping.",
    507: "The upload cannot be stored.",
}


def _documented(text: str) -> dict[str, Any]:
    return _example(text, error_body(422, "clip.mp4: not a known video format"))


def _example(text: str, content: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"example": content}}}


def _content(text: str, media_types: Iterable[str]) -> dict[str, Any]:
    return {"description": text, "content": {one: {"schema": {"type": "string"}} for one in media_types}}


_TIMELINE = _content("The timeline, as `picknet timeline`, in its format.", MEDIA_TYPES.values())
_TIMELINE["content"]["application/json"] = {"example": TIMELINE}


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(error_body(status, message), status, headers)


async def _http_error(request: HTTPConnection, error: Exception) -> Any:
    """The answer; None for a stream, which has been told."""
    assert isinstance(error, HTTPException)
    if isinstance(request, WebSocket):
        await refuse(request, error.status_code, error.detail)
        return None
    if isinstance(error.__cause__, OSError):  # the framework stores uploads while it reads them
        return await _picknet_error(request, NoSpace(error.__cause__))
    headers = dict(error.headers or {})
    message = error.detail
    if not isinstance(error, Refused) and error.status_code in (404, 405):  # of the framework
        possible = f"no such method; possible: {headers['Allow']}" if "Allow" in headers else "no such address"
        message = f"{request.url.path[:100]}: {possible}"
    return _error(error.status_code, message, headers)


async def _bad_request(request: HTTPConnection, error: Exception) -> Any:
    assert isinstance(error, ValidationException)
    message = "; ".join(f"{one['loc'][-1]}: {with_value(one)}" for one in error.errors())
    return await _http_error(request, Refused(400, message))


async def _picknet_error(_: HTTPConnection, error: Exception) -> JSONResponse:
    assert isinstance(error, PicknetError)
    refused = Refused(status_of(error), str(error))
    return _error(refused.status_code, refused.detail, dict(refused.headers or {}))


async def _internal_error(_: Request, error: Exception) -> JSONResponse:
    return _error(500, "internal error; the service's log says more")
