"""The service answers what the command line prints, says what is wrong in one sentence, and keeps nothing."""

import base64
import contextlib
import dataclasses
import errno
import http.client
import io
import json
import logging
import os
import select
import shutil
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import servers
import srt
from clips import number_of, picture, write_clip
from PIL import Image
from services import (
    BEARER,
    TOKEN,
    Running,
    StubCaptioner,
    ask,
    client_example,
    error_of,
    form,
    serving,
    until,
    uploads,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from picknet.serve.app import MEDIA_TYPES, create_app
from picknet.serve.service import SAMPLES, Limits


def metrics(running: Running) -> str:
    return ask(running, "GET", "/metrics")[2].decode()


# --- Captions ---------------------------------------------------------------------------------------------------------


def test_a_caption_is_written_from_frames_that_a_child_process_decoded(running: Running, clip: Path) -> None:
    answer = running.client().caption(clip, candidates=2)
    assert answer["caption"] == "7 22 37 52"  # the middles of four quarters of 60 frames
    assert (answer["video"], answer["seconds"], answer["frames_seen"]) == ("clip.mp4", 2.4, 4)
    assert [pick["frame_number"] for pick in answer["picks"]] == [7, 22, 37, 52]
    assert len(answer["candidates"]) == 2
    assert uploads(running) == []


def test_a_file_under_the_root_is_read_where_it_is(running: Running, films: Path) -> None:
    status, _, content = ask(running, "POST", "/v1/captions", *form(path="inside/clip.mp4"))
    assert status == 200
    assert json.loads(content)["caption"] == "7 22 37 52"
    assert (films / "inside" / "clip.mp4").exists()


@pytest.mark.parametrize("path", ["../clip.mp4", "/etc/passwd", "link.mp4", "inside", "no.mp4", "a\0b", ""])
def test_no_path_leads_out_of_the_root(running: Running, path: str) -> None:
    status, message = error_of(ask(running, "POST", "/v1/captions", *form(path=path)))
    assert status in (400, 404)
    assert "root" in message
    assert str(Path.cwd()) not in message


def test_the_name_of_an_upload_is_shown_and_never_a_path(running: Running, clip: Path, tmp_path: Path) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="../../x/evil\x07.mp4"\r\n\r\n'
    body += clip.read_bytes() + b"\r\n--b--\r\n"
    status, _, content = ask(
        running, "POST", "/v1/captions", body, {**BEARER, "Content-Type": "multipart/form-data; boundary=b"}
    )
    assert (status, json.loads(content)["video"]) == (200, "evil.mp4")


def test_what_is_no_video_is_told_by_its_name_without_the_path(running: Running, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_bytes(b"not a video at all" * 100)
    client = running.client()
    with pytest.raises(client.Error, match=r"^notes\.mp4: not a known video format$"):
        client.caption(bad)
    assert uploads(running) == []


@pytest.mark.parametrize("place", ["starlette.datastructures.UploadFile.write", "shutil.copyfileobj"])
def test_an_upload_that_does_not_fit_on_the_disk_is_told(
    running: Running, clip: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(*_: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n' + clip.read_bytes()
    body, headers = body + b"\r\n--b--\r\n", form()[1]
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        refused = error_of(ask(running, "POST", "/v1/captions", body, headers))
    assert refused == (507, "the upload cannot be stored (No space left on device); try again later")
    assert uploads(running) == []
    assert ask(running, "POST", "/v1/captions", body, headers)[0] == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "clip.mp4", "candidates": 0}, "candidates: '0' should be greater than or equal to 1"),
        ({"path": "clip.mp4", "rate": 1, "k": 3}, "rate is 1 and k is 3: one of them is possible"),
        ({"file": "clip.mp4"}, "file: a text, where a file is needed, as in curl -F file=@clip.mp4"),
        ({"path": "clip.mp4", "beam": 99}, "beam: '99' should be less than or equal to 50"),
        (
            {},
            "a form with one of these is needed: a file (the video), a path (under the service's root folder), a "
            "source (its address)",
        ),
        (
            {"source": "http://media.example/a.mp4"},
            "source: this service fetches no addresses; send the video, or start it with --allow-sources HOST",
        ),
        (
            {"path": "clip.mp4", "candidate": 3},
            "candidate: no such field; possible: file, path, source, candidates, min_confidence, rate, k, frames, beam",
        ),
    ],
)
def test_a_bad_setting_is_told(running: Running, fields: dict[str, Any], message: str) -> None:
    assert error_of(ask(running, "POST", "/v1/captions", *form(**fields))) == (400, message)


def test_a_file_where_a_text_is_needed_is_told(running: Running) -> None:
    body, headers = form(path="clip.mp4")
    body = body.replace(b'name="path"', b'name="path"; filename="clip.mp4"')
    refused = error_of(ask(running, "POST", "/v1/captions", body, headers))
    assert refused == (400, "path: a file, where a text is needed; a video is sent as file")


def test_half_a_character_is_told_as_an_escape(running: Running) -> None:
    body, headers = form(**{"+2AA-": 1})
    headers["Content-Type"] += "; charset=utf-7"
    status, message = error_of(ask(running, "POST", "/v1/captions", body, headers))
    assert (status, message.partition(";")[0]) == (400, "\\ud800: no such field")


def test_nonsense_of_clients_is_not_logged(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    assert ask(running, "POST", "/v1/captions", b"--xx", form()[1])[0] == 400
    with connect(stream_address(running), additional_headers=BEARER) as stream, pytest.raises(ConnectionClosed):
        with stream.send_context():
            stream.protocol.send_text(b"\xff")
        stream.recv(timeout=20)
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connected:
        connected.sendall(b"\x16\x03\x01\x02\x00")  # TLS
        assert connected.recv(100).startswith(b"HTTP/1.1 400 ")
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert caplog.records == []


@pytest.mark.parametrize("address", ["captions", "captions/events", "frames", "timelines"])
def test_no_setting_is_ignored(running: Running, address: str) -> None:
    status, message = error_of(ask(running, "POST", f"/v1/{address}", *form(path="clip.mp4", style="coco")))
    assert (status, message.partition("; possible: file, path, source, ")[0]) == (400, "style: no such field")
    in_address = ask(running, "POST", f"/v1/{address}?rate=2", *form(path="clip.mp4"))
    assert error_of(in_address) == (400, "rate: a setting is a field of the form, not a part of the address")
    body, headers = form(path="clip.mp4", k=2)
    twice = ask(running, "POST", f"/v1/{address}", body.replace(b"--b--", form(path="clip.mp4")[0]), headers)
    assert error_of(twice) == (400, "path: given 2 times; a field has one value")


# --- Events -----------------------------------------------------------------------------------------------------------


def events_of(content: bytes) -> list[tuple[str, Any]]:
    lines = (event.split("\n") for event in content.decode().split("\n\n") if event)
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


def test_events_tell_what_is_looked_at_and_picked_and_end_with_the_caption(running: Running, clip: Path) -> None:
    status, headers, content = ask(running, "POST", "/v1/captions/events", *form(path="clip.mp4", candidates=2))
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    events = events_of(content)
    assert [name for name, _ in events] == ["glance", "pick"] * 4 + ["caption"]
    glance, pick = events[0][1], events[1][1]
    assert (glance["index"], glance["probability"], pick["frame_number"]) == (0, 0.25, 7)
    assert Image.open(io.BytesIO(base64.b64decode(glance["data"]))).size == (56, 56)
    assert number_of(np.asarray(Image.open(io.BytesIO(base64.b64decode(pick["data"]))))) == 7
    assert events[-1][1] == running.client().caption(clip, candidates=2)


def test_what_goes_wrong_after_the_upload_is_an_event(running: Running, tmp_path: Path) -> None:
    status, _, content = ask(running, "POST", "/v1/captions/events", *form(path="clip.mp4", rate=1, k=3))
    assert (status, *events_of(content)) == (
        200,
        ("error", {"error": {"code": "bad_request", "message": "rate is 1 and k is 3: one of them is possible"}}),
    )
    assert ask(running, "POST", "/v1/captions/events", *form(path="none.mp4"))[0] == 404


def test_work_for_a_client_that_has_gone_is_ended(running: Running, clip: Path) -> None:
    running.captioner.gate.clear()
    num_before = running.captioner.num_captions
    body, headers = form(path="clip.mp4")
    connections = [http.client.HTTPConnection("127.0.0.1", running.port, timeout=30) for _ in range(2)]
    try:
        for connection in connections:  # the second one waits for the first one's thread
            connection.request("POST", "/v1/captions/events", body, headers)
        until(lambda: "picknet_open_requests 2.0" in metrics(running))
        until(lambda: running.captioner.num_waiting == 1)
        for connection in connections:
            connection.close()
        until(lambda: "picknet_open_requests 0.0" in metrics(running))
    finally:
        running.captioner.gate.set()
    assert running.client().caption(clip)["caption"] == "7 22 37 52"
    assert running.captioner.num_captions == num_before + 2  # that of the first one, and this one


@pytest.mark.parametrize("address", ["captions", "frames"])
def test_an_answer_for_a_client_that_has_gone_is_not_worked_out(running: Running, clip: Path, address: str) -> None:
    running.captioner.gate.clear()
    num_before = running.captioner.num_captions
    try:
        connections = [http.client.HTTPConnection("127.0.0.1", running.port, timeout=30) for _ in range(2)]
        connections[0].request("POST", "/v1/captions", *form(path="clip.mp4"))
        until(lambda: running.captioner.num_waiting == 1)
        connections[1].request("POST", f"/v1/{address}", *form(path="clip.mp4"))
        until(lambda: "picknet_open_requests 2.0" in metrics(running))
        connections[1].close()  # its turn has not come
        until(lambda: "picknet_open_requests 1.0" in metrics(running))
        connections[0].close()
    finally:
        running.captioner.gate.set()
    until(lambda: "picknet_open_requests 0.0" in metrics(running))
    assert running.captioner.num_captions == num_before + 1
    assert uploads(running) == []


def test_decoding_for_a_client_that_has_gone_is_ended(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def caption(video: Any, **_: Any) -> None:
        asked.set()
        while True:  # a long video
            video.num_samples(1)

    monkeypatch.setattr(running.captioner, "caption", caption)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request("POST", "/v1/captions", *form(path="clip.mp4"))
    assert asked.wait(20)
    connection.close()
    until(lambda: "picknet_open_requests 0.0" in metrics(running))


def test_the_samples_are_those_of_the_folder_and_no_others(running: Running, clip: Path) -> None:
    assert json.loads(ask(running, "GET", "/v1/samples")[2]) == ["clip.mp4"]
    status, headers, content = ask(running, "GET", "/v1/samples/clip.mp4")
    assert (status, headers["content-type"], content) == (200, "video/mp4", clip.read_bytes())
    assert [path.stat().st_size < 300_000 for path in SAMPLES.glob("*.mp4")] == [True]  # a wheel carries it
    parts = {**BEARER, "Range": "bytes=4-7"}
    assert ask(running, "GET", "/v1/samples/clip.mp4", headers=parts)[::2] == (206, b"ftyp")
    for wrong, refused in (("bytes=9999999-", 416), ("lines=1-2", 400)):
        answer = ask(running, "GET", "/v1/samples/clip.mp4", headers={**BEARER, "Range": wrong})
        assert error_of(answer) == (refused, "Range: bytes of the file are needed, such as bytes=0-99")
    running.service.samples["gone.mp4"] = clip.parent / "gone.mp4"
    for name in ("link.mp4", "..%2Fclip.mp4", "none.mp4", "gone.mp4"):
        assert ask(running, "GET", f"/v1/samples/{name}")[0] == 404
    del running.service.samples["gone.mp4"]


def test_a_client_is_told_when_a_caption_is_doubtful(running: Running) -> None:
    answer = json.loads(ask(running, "GET", "/v1/model")[2])
    document = json.loads(ask(running, "GET", "/openapi.json")[2])["paths"]["/v1/model"]["get"]
    example = document["responses"]["200"]["content"]["application/json"]["example"]
    assert answer == {"model": "stub", "doubtful_below": 0.5}
    assert answer.keys() == example.keys()


# --- Frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "fields", "message"),
    [
        ("frames", {"format": "xml"}, "format: 'xml' should be 'base64', 'json', 'openai' or 'anthropic'"),
        ("frames", {"image_format": "gif"}, "image_format: 'gif' should be 'jpeg' or 'png'"),
        ("timelines", {"fps": "1e-320"}, "fps: '1e-320' should be greater than or equal to 0.001"),
        ("timelines", {"format": "edl"}, "format: 'edl' should be 'json', 'jsonl', 'csv', 'srt', 'vtt' or 'text'"),
    ],
)
def test_an_unknown_format_is_told_with_those_that_are_possible(
    running: Running, address: str, fields: dict[str, str], message: str
) -> None:
    answer = ask(running, "POST", f"/v1/{address}", *form(path="clip.mp4", **fields))
    assert error_of(answer) == (400, message)


def test_frames_come_as_pictures_or_as_parts_of_a_message(running: Running, clip: Path) -> None:
    frames = running.client().frames(clip, budget=2)
    assert [frame["frame_number"] for frame in frames] == [15, 45]
    pictures = [Image.open(io.BytesIO(base64.b64decode(frame["data"]))) for frame in frames]
    assert [number_of(np.asarray(one)) for one in pictures] == [15, 45]
    assert [one.size for one in pictures] == [(frame["width"], frame["height"]) for frame in frames]
    parts = running.client().frames(clip, budget=2, format="openai", max_side=32)
    assert [part["type"] for part in parts] == ["text", "image_url"] * 2
    index = running.client().frames(clip, budget=2, format="json")
    assert index.keys() == {"video", "num_picks", "picks", "frames_seen", "damage", "picker"}


# --- Timelines and jobs -----------------------------------------------------------------------------------------------


def test_a_short_timeline_is_answered_at_once(running: Running, clip: Path) -> None:
    content = json.loads(running.client().timeline(clip))
    assert [segment["caption"] for segment in content["segments"]] == [f"number {n}" for n in (0, 13, 25, 38, 50)]
    assert (content["video"], content["model"], content["damage"]) == ("clip.mp4", "stub", None)
    subtitles = list(srt.parse(running.client().timeline(clip, format="srt")))
    assert [one.content for one in subtitles][:2] == ["number 0", "number 13"]
    assert uploads(running) == []


def test_subtitles_of_a_video_that_begins_late_count_the_sound_before_it(running: Running, tmp_path: Path) -> None:
    late = write_clip(tmp_path / "late.mkv", milliseconds=[3000 + 40 * n for n in range(60)], with_audio=True)
    first = next(srt.parse(running.client().timeline(late, format="srt")))
    assert (first.start.total_seconds(), first.end.total_seconds()) == (3.0, 3.5)
    assert running.client().timeline(late, format="vtt").startswith("WEBVTT\n\n00:00:03.000 --> 00:00:03.500\n")
    assert json.loads(running.client().timeline(late))["segments"][0]["start"] == 0.0


def test_a_bad_setting_of_a_timeline_is_told_at_once(running: Running) -> None:
    answer = ask(running, "POST", "/v1/timelines", *form(path="clip.mp4", beam=13))
    assert error_of(answer) == (400, "beam is 13: an unlucky number")


@pytest.fixture
def job(running: Running, clip: Path) -> Any:
    """A job that waits after its first segment."""
    running.captioner.gate.clear()
    try:
        answer = ask(running, "POST", "/v1/timelines", *form(path="clip.mp4", wait=0))
        assert answer[0] == 202
        content = json.loads(answer[2])
        assert answer[1]["location"] == f"/v1/jobs/{content['id']}"
        until(lambda: running.captioner.num_waiting == 1)
        yield content["id"]
    finally:
        running.captioner.gate.set()
        until(lambda: running.service.jobs.num_open == 0)


def test_a_job_that_nobody_knows_of_is_cancelled(running: Running) -> None:
    running.captioner.gate.clear()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        connection.request("POST", "/v1/timelines", *form(path="clip.mp4"))
        until(lambda: running.captioner.num_waiting == 1)
        (job,) = (job for job in running.service.jobs._jobs.values() if not job.is_over.is_set())
        assert not job.wants_end.is_set()
        connection.close()
        assert job.wants_end.wait(5)
    finally:
        running.captioner.gate.set()
        until(lambda: running.service.jobs.num_open == 0)
    assert str(job.error) == "clip.mp4: the client has gone"


def test_a_job_tells_how_far_it_is_and_then_its_result(running: Running, job: str) -> None:
    state = json.loads(ask(running, "GET", f"/v1/jobs/{job}")[2])
    assert state == {
        "id": job, "video": "clip.mp4", "state": "running", "seconds": 0.0, "total_seconds": 2.4, "num_segments": 1,
        "error": None,
    }  # fmt: skip
    assert ask(running, "GET", f"/v1/jobs/{job}/result")[0] == 409
    events = running.client().events(job)
    assert [next(events)[0] for _ in range(2)] == ["segment", "progress"]
    running.captioner.gate.set()
    rest = list(events)
    assert rest[-1][0] == "end"
    assert (rest[-1][1]["state"], rest[-1][1]["num_segments"]) == ("done", 5)
    assert sum(event == "segment" for event, _ in rest) == 4
    status, headers, content = ask(running, "GET", f"/v1/jobs/{job}/result?format=vtt")
    assert (status, headers["content-type"]) == (200, "text/vtt; charset=utf-8")
    assert content.startswith(b"WEBVTT\n\n00:00:00.000 --> 00:00:00.500\nnumber 0\n")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("result?fromat=srt", "fromat: no such setting; possible: format"),
        ("result?format=srt&format=vtt", "format: given 2 times; a setting has one value"),
        ("result?format=edl", "format: 'edl' should be 'json', 'jsonl', 'csv', 'srt', 'vtt' or 'text'"),
        ("events?wait=1", "wait: no such setting; possible: none"),
    ],
)
def test_no_setting_behind_a_question_mark_is_ignored(running: Running, job: str, address: str, message: str) -> None:
    assert error_of(ask(running, "GET", f"/v1/jobs/{job}/{address}")) == (400, message)


def test_the_page_and_the_addresses_for_machines_take_any_question_mark(running: Running) -> None:
    for address in ("/?utm_source=mail", "/healthz?probe=1", "/metrics?name[]=picknet_picks_total"):
        assert ask(running, "GET", address)[0] == 200


def test_an_address_or_a_method_that_does_not_exist_is_told(running: Running) -> None:
    assert error_of(ask(running, "GET", "/v1/caption")) == (404, "/v1/caption: no such address")
    assert error_of(ask(running, "GET", "/v1/captions")) == (405, "/v1/captions: no such method; possible: POST")
    for path in ("/healthz", "/readyz"):
        assert ask(running, "HEAD", path)[0] == 200


def test_a_job_can_be_cancelled(running: Running, job: str) -> None:
    running.client().cancel(job)
    running.captioner.gate.set()
    until(lambda: json.loads(ask(running, "GET", f"/v1/jobs/{job}")[2])["state"] == "cancelled")
    assert error_of(ask(running, "GET", f"/v1/jobs/{job}/result")) == (409, "clip.mp4: cancelled")
    assert running.client().caption(running.service._root / "clip.mp4")["caption"] == "7 22 37 52"


def test_a_job_that_is_queued_is_cancelled_at_once(running: Running, job: str) -> None:
    upload, headers = form(wait=0)
    video = (running.service._root / "clip.mp4").read_bytes()
    part = b'Content-Disposition: form-data; name="file"; filename="a.mp4"\r\n\r\n' + video
    body = upload.removesuffix(b"--b--\r\n") + b"--b\r\n" + part + b"\r\n--b--\r\n"
    for _ in range(3):  # the queue holds one
        queued = json.loads(ask(running, "POST", "/v1/timelines", body, headers)[2])
        assert (queued["state"], len(uploads(running))) == ("queued", 1)
        assert running.client().cancel(queued["id"])["state"] == "cancelled"
        assert [event for event, _ in running.client().events(queued["id"])] == ["end"]
        assert uploads(running) == []
    assert json.loads(ask(running, "GET", f"/v1/jobs/{job}")[2])["state"] == "running"


def test_no_more_jobs_than_the_queue_holds(running: Running, job: str) -> None:
    body, headers = form(path="clip.mp4", wait=0)
    assert ask(running, "POST", "/v1/timelines", body, headers)[0] == 202
    status, answered, content = ask(running, "POST", "/v1/timelines", body, headers)
    assert (status, answered["retry-after"]) == (429, "2")
    assert "2 timelines are queued or running" in content.decode()


def test_an_unknown_job_is_not_found(running: Running) -> None:
    for path in ("/v1/jobs/none", "/v1/jobs/none/events", "/v1/jobs/none/result"):
        assert ask(running, "GET", path)[0] == 404


# --- The client in the examples ---------------------------------------------------------------------------------------


def test_the_example_prints_captions_timelines_and_frames(
    running: Running, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object) -> str:
        client_example().main([*map(str, arguments), "--address", running.address, "--token", TOKEN])
        return capsys.readouterr().out

    assert run("caption", clip) == "7 22 37 52\n"
    assert run("timeline", clip).splitlines()[0] == "0:00:00-0:00:00  number 0"
    assert run("frames", clip, "--budget", 2, "--out", tmp_path) == f"{tmp_path}/0001.jpg\n{tmp_path}/0002.jpg\n"
    assert number_of(np.asarray(Image.open(tmp_path / "0002.jpg"))) == 45
    with pytest.raises(SystemExit, match=r"^client\.py: no service answers at http://127\.0\.0\.1:1: start one with"):
        client_example().main(["caption", str(clip), "--address", "http://127.0.0.1:1"])


# --- Limits and access ------------------------------------------------------------------------------------------------


def test_the_example_sends_names_as_they_are(running: Running, clip: Path, tmp_path: Path) -> None:
    shutil.copy(clip, path := tmp_path / 'été "2" 日本.mp4')
    assert running.client().caption(path)["video"] == path.name


def test_the_example_tells_what_is_wrong_with_an_address_or_a_token(running: Running, clip: Path) -> None:
    client = client_example().Client
    for wrong in (f"127.0.0.1:{running.port}", "localhost", "ftp://x", "http://"):
        with pytest.raises(client.Error, match=f"^{wrong}: not an address such as http://127.0.0.1:8000$"):
            client(wrong)
    with pytest.raises(client.Error, match=r"^the token has a character that is not ASCII$"):
        client(running.address, token="€")
    with pytest.raises(client.Error, match=r"^/prefix/v1/captions: no such address$"):
        client(f"{running.address}/prefix/", token=TOKEN).caption(clip)
    other = servers.Server(lambda request: request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
    with other, pytest.raises(client.Error, match=r": what answers there is no picknet serv"):
        client(f"http://127.0.0.1:{other.port}").cancel("x")


def test_beyond_the_queue_requests_are_told_to_come_back(running: Running, clip: Path) -> None:
    running.captioner.gate.clear()
    answers: list[dict[str, Any]] = []
    waiting = [threading.Thread(target=lambda: answers.append(running.client().caption(clip))) for _ in range(2)]
    try:
        for thread in waiting:
            thread.start()
        until(lambda: "picknet_open_requests 2.0" in metrics(running))
        status, headers, content = ask(running, "POST", "/v1/captions", *form(path="clip.mp4"))
    finally:
        running.captioner.gate.set()
        for thread in waiting:
            thread.join()
    assert (status, headers["retry-after"]) == (429, "2")
    assert json.loads(content)["error"]["code"] == "busy"
    assert [answer["caption"] for answer in answers] == ["7 22 37 52"] * 2


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_upload_that_is_too_large_is_refused(running: Running, tmp_path: Path, is_chunked: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    body, headers = form(path="x" * 300_000)
    chunks: Any = iter([body]) if is_chunked else body
    connection.request("POST", "/v1/captions", chunks, headers, encode_chunked=is_chunked)
    answer = connection.getresponse()
    assert answer.status == 413
    assert "larger than 200,000 bytes" in json.loads(answer.read())["error"]["message"]
    assert uploads(running) == []


def test_an_upload_that_is_broken_off_leaves_nothing(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(
            f"POST /v1/captions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 99999\r\n"
            'Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\nContent-Disposition: form-data; name="file"; '
            'filename="a.mp4"\r\n\r\nhalf'.encode()
        )
        until(lambda: "picknet_open_requests 1.0" in metrics(running))
    until(lambda: "picknet_open_requests 0.0" in metrics(running))
    assert uploads(running) == []


def test_an_upload_that_stalls_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picknet.serve.guard.UPLOAD_PATIENCE", 0.2)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.putrequest("POST", "/v1/captions")
    for name, value in {**form()[1], "Content-Length": "100"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"--b\r\n")
    answer = connection.getresponse()
    assert error_of((answer.status, {}, answer.read())) == (408, "no byte of the upload arrived for 0.2 s")


def test_an_upload_of_a_byte_now_and_then_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picknet.serve.guard.UPLOAD_PATIENCE", 0.3)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.putrequest("POST", "/v1/captions")
    for name, value in {**form()[1], "Content-Length": "100000"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"--b\r\n")
    for _ in range(100):
        if select.select([connection.sock], [], [], 0.1)[0]:
            break  # it has answered, and would not take another byte
        connection.send(b"x")
    answer = connection.getresponse()
    assert error_of((answer.status, {}, answer.read())) == (408, "the upload is slower than 4,096 bytes a second")


def test_a_video_that_is_too_long_is_told(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.service, "limits", dataclasses.replace(running.service.limits, duration=1.0))
    answer = ask(running, "POST", "/v1/captions", *form(path="clip.mp4"))
    assert error_of(answer) == (422, "clip.mp4: lasts 2 s; at most 1 s are possible")
    monkeypatch.undo()


def test_a_service_that_stops_tells_its_jobs_and_streams_and_takes_no_more(films: Path) -> None:
    captioner = StubCaptioner()
    captioner.gate.clear()
    with serving(captioner, Limits(workers=1), root=films) as stopping:
        body, headers = form(path="clip.mp4", wait=0)
        id = json.loads(ask(stopping, "POST", "/v1/timelines", body, headers)[2])["id"]
        until(lambda: captioner.num_waiting == 1)
        with connect(stream_address(stopping), additional_headers=BEARER) as stream:
            until(lambda: "picknet_open_streams 1.0" in metrics(stopping))
            stopping.service.stop()
            assert error_of(ask(stopping, "POST", "/v1/timelines", body, headers)) == (503, "the service is stopping")
            assert ask(stopping, "GET", "/readyz")[0] == 503
            captioner.gate.set()
            events = list(stopping.client().events(id))
            with pytest.raises(ConnectionClosed) as closed:
                stream.recv(timeout=20)
    assert (events[-1][0], events[-1][1]["error"]) == ("end", "clip.mp4: the service is stopping")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    assert not stopping.service._folder.exists()


def test_what_waits_when_a_service_is_ended_is_told_so(films: Path) -> None:
    captioner = StubCaptioner()
    captioner.gate.clear()
    answers: list[Any] = []

    def asks() -> None:
        answers.append(ask(ending, "POST", "/v1/timelines", *form(path="clip.mp4", wait=20)))

    def listens() -> None:
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                answers.append(json.loads(stream.recv(timeout=20))["caption"])
        assert closed.value.rcvd is not None
        answers.append(closed.value.rcvd.code)

    asking, listening = threading.Thread(target=asks), threading.Thread(target=listens)
    with contextlib.ExitStack() as opened:
        with serving(captioner, Limits(workers=1), root=films) as ending:
            asking.start()
            until(lambda: captioner.num_waiting == 1)
            stream = opened.enter_context(connect(stream_address(ending), additional_headers=BEARER))
            stream.send(jpeg(3))
            listening.start()
            until(lambda: answers == ["number 3"])
            captioner.gate.set()
        listening.join()
        asking.join()
    assert 1001 in answers
    assert [error_of(one) for one in answers if isinstance(one, tuple)] == [(503, "clip.mp4: the service is stopping")]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
def test_nothing_is_answered_without_the_token(running: Running, headers: dict[str, str]) -> None:
    for path in ("/v1/captions", "/v1/jobs/x", "/metrics", "/openapi.json"):
        status, answered, _ = ask(running, "POST" if path == "/v1/captions" else "GET", path, headers=headers)
        assert (status, answered["www-authenticate"]) == (401, "Bearer")
    assert ask(running, "GET", "/healthz", headers=headers)[::2] == (200, b"ok\n")
    assert ask(running, "GET", "/readyz", headers=headers)[::2] == (200, b"ok\n")


def test_pages_of_other_sites_are_not_answered(running: Running) -> None:
    own = f"http://127.0.0.1:{running.port}"
    assert ask(running, "GET", "/metrics", headers={**BEARER, "Origin": own})[0] == 200
    status, headers, _ = ask(running, "GET", "/metrics", headers={**BEARER, "Origin": "http://evil.example"})
    assert status == 403
    assert "access-control-allow-origin" not in headers


def test_every_answer_has_security_headers(running: Running) -> None:
    for path in ("/metrics", "/no/such/page", "/v1/captions"):
        status, headers, _ = ask(running, "GET", path)
        assert status in (200, 404, 405)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert "server" not in headers


def test_a_bug_is_answered_without_its_traceback(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(running.captioner, "caption", broken)
    answer = ask(running, "POST", "/v1/captions", *form(path="clip.mp4"))
    assert error_of(answer) == (500, "internal error; the service's log says more")


def test_the_figures_count_requests_stages_and_picks(running: Running, clip: Path) -> None:
    running.client().caption(clip)
    figures = metrics(running)
    assert 'picknet_requests_total{endpoint="/v1/captions",status="200"}' in figures
    for stage in ("wait", "decode", "describe"):
        assert f'picknet_stage_seconds_count{{endpoint="captions",stage="{stage}"}}' in figures
    assert "picknet_picks_total" in figures


def test_the_openapi_document_shows_an_example_of_every_answer(running: Running) -> None:
    document = create_app(running.service).openapi()
    assert document["paths"].keys() >= {"/v1/captions", "/v1/frames", "/v1/timelines", "/v1/jobs/{id}"}
    for path in ("captions", "frames", "timelines"):
        answers = document["paths"][f"/v1/{path}"]["post"]["responses"]
        assert answers["200"]["content"]["application/json"]["example"]
        assert {"401", "413", "422", "429"} <= answers.keys()
    types = {
        (path, method): set(about["responses"]["200"].get("content", {}))
        for path, methods in document["paths"].items() for method, about in methods.items()
    }  # fmt: skip
    assert types["/v1/captions/events", "post"] == types["/v1/jobs/{id}/events", "get"] == {"text/event-stream"}
    assert types["/v1/timelines", "post"] == types["/v1/jobs/{id}/result", "get"] == set(MEDIA_TYPES.values())
    assert types["/v1/samples/{name}", "get"] == {"video/*"}
    assert "409" in document["paths"]["/v1/jobs/{id}/result"]["get"]["responses"]
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


# --- Streams ----------------------------------------------------------------------------------------------------------


def jpeg(number: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(picture(number)).save(content, "jpeg", quality=95)
    return content.getvalue()


def stream_address(running: Running) -> str:
    return f"ws://127.0.0.1:{running.port}/v1/stream?fps=2"


def test_pictures_on_a_websocket_are_described_as_they_come(running: Running) -> None:
    with connect(stream_address(running), additional_headers=BEARER) as stream:
        for number in (3, 200):
            stream.send(jpeg(number))
            assert json.loads(stream.recv(timeout=20))["caption"] == f"number {number}"
        stream.send(jpeg(77))
        stream.send("end")
        last = json.loads(stream.recv(timeout=20))
        assert (last["caption"], last["seconds"], last["total_picks"]) == ("number 77", 1.0, 3)
        with pytest.raises(ConnectionClosed) as closed:
            stream.recv(timeout=20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


def test_a_browser_sends_the_token_as_a_protocol(running: Running) -> None:
    name: Any = f"picknet.token.{TOKEN}"
    with connect(stream_address(running), subprotocols=[name]) as stream:
        assert stream.subprotocol == name
        until(lambda: "picknet_open_streams 1.0" in metrics(running))
        with connect(stream_address(running), subprotocols=[name]) as second, pytest.raises(ConnectionClosed) as closed:
            second.recv(timeout=20)  # one worker, one stream
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
    until(lambda: "picknet_open_streams 0.0" in metrics(running))
    for headers in ({}, {**BEARER, "Origin": "http://evil.example"}):
        with pytest.raises(InvalidStatus):
            connect(stream_address(running), additional_headers=headers)


def test_a_token_of_any_signs_can_be_a_protocol(films: Path) -> None:
    token = "Zm9v/YmFy+(100%25)=="
    name: Any = f"picknet.token.{quote(token, safe='')}"
    with serving(StubCaptioner(), Limits(workers=1), token=token, root=films) as running:
        with connect(stream_address(running), subprotocols=[name]) as stream:
            assert stream.subprotocol == name
        with pytest.raises(InvalidStatus):
            connect(stream_address(running), subprotocols=[name.replace("Zm9v", "zm9v")])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("min_confidence=7", "min_confidence: '7' should be less than or equal to 1"),
        ("rate=abc", "rate: 'abc' should be a valid number, unable to parse string as a number"),
        ("foo=1", "foo: no such setting; possible: fps, rate, min_confidence"),
        ("fps=1e-320", "fps: '1e-320' should be greater than or equal to 0.001"),
        ("rate=13", "rate is 13: an unlucky number"),
    ],
)
def test_a_bad_setting_of_a_stream_is_told(running: Running, settings: str, message: str) -> None:
    address = stream_address(running).replace("fps=2", settings)
    name: Any = f"picknet.token.{TOKEN}"
    with connect(address, subprotocols=[name]) as stream, pytest.raises(ConnectionClosed) as closed:
        told = json.loads(stream.recv(timeout=20))
        stream.recv(timeout=20)
    assert told == {"error": {"code": "bad_request", "message": message}}
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_what_is_no_picture_ends_the_stream_with_a_reason(running: Running) -> None:
    with connect(stream_address(running), additional_headers=BEARER) as stream:
        stream.send(jpeg(3))
        stream.recv(timeout=20)
        stream.send(b"not a picture")
        message = json.loads(stream.recv(timeout=20))["error"]["message"]
    assert message == "picture: cannot be read; JPEG, PNG and WebP are possible"


@pytest.mark.parametrize("name", ["clip.webm", "clip.ts", "clip.mp4"])
def test_the_bytes_of_a_video_are_described_as_they_come(running: Running, tmp_path: Path, name: str) -> None:
    codec = "libvpx" if name == "clip.webm" else "libx264"
    content = write_clip(tmp_path / name, codec=codec).read_bytes()
    num_live = len(content) * 3 // 4
    captions = []
    with connect(stream_address(running), additional_headers=BEARER) as stream:
        for start in range(0, num_live, 1000):
            stream.send(content[start : min(start + 1000, num_live)])
        if name == "clip.ts":  # the index of the MP4 is at its end, and a WebM this short is analysed as a whole
            captions.append(json.loads(stream.recv(timeout=20))["caption"])
        stream.send(content[num_live:])
        stream.send("end")
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                captions.append(json.loads(stream.recv(timeout=20))["caption"])
    assert captions == [f"number {n}" for n in (0, 13, 25, 38, 50)]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


def test_bytes_that_are_no_video_end_the_stream_with_a_reason(running: Running) -> None:
    with connect(stream_address(running), additional_headers=BEARER) as stream:
        stream.send(b"not a video" * 1000)
        stream.send("end")
        message = json.loads(stream.recv(timeout=20))["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            stream.recv(timeout=20)
    assert message == "stream: nothing came, or what it sends is not a known video format"
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
