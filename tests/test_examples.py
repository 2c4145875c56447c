"""The examples do what they say, on the sample and against a server that is strict about what it is sent."""

import base64
import functools
import http.server
import importlib.util
import io
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

import picknet
from picknet.captioner import DEFAULT_MODEL, SHIPPED

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "cockatoo.mp4"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))

needs_the_model = pytest.mark.skipif(not (SHIPPED / DEFAULT_MODEL).is_dir(), reason="no model in the package yet")


@functools.cache
def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(capsys):
    """Call an example as if from a shell: exit code, standard output, standard error."""

    def call(name, *arguments):
        capsys.readouterr()
        code = 0
        try:
            example(name).main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
        out, err = capsys.readouterr()
        return code, out, err

    return call


class Remembering:
    """The captioner in the package, but it watches a video only once, and in no real time."""

    def stream(self, source, *, fps=1.0, realtime=False):
        return iter(watched("stream", str(source), fps=fps))

    def timeline(self, source):
        return iter(watched("timeline", str(source)))


@functools.cache
def watched(method, source, **options):
    return tuple(getattr(load_once(), method)(source, **options))


load_once = functools.cache(picknet.load)


@pytest.fixture
def captioner(monkeypatch):
    monkeypatch.setattr(picknet, "load", Remembering)
    return Remembering()


@pytest.mark.parametrize("name", NAMES)
def test_help_and_no_arguments_at_all_are_answered(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert example(name).__doc__.splitlines()[0] in out
    code, out, err = run(name)
    assert (code, out) == (2, "")
    assert "error: the following arguments are required: " in err


def test_an_example_runs_as_a_program_of_its_own():
    command = [sys.executable, EXAMPLES / "search.py", "find", "no.db", "birds"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("error: no.db: no such database; search.py index makes one\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_in_the_list_of_them(name):
    assert f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


# --- A camera that narrates -------------------------------------------------------------------------------------------


@needs_the_model
def test_a_sentence_is_told_when_it_changes(run, captioner):
    code, out, err = run("narrate", SAMPLE)
    assert (code, err) == (0, "")
    said = [line.split("  ", 1) for line in out.splitlines()]
    expected = [update for update in captioner.stream(SAMPLE) if update.changed]
    assert [text for _, text in said] == [update.text for update in expected]
    assert [time for time, _ in said] == [f"0:{int(update.seconds):02d}" for update in expected]


@needs_the_model
@pytest.mark.skipif(sys.platform == "win32", reason="the voice is a shell script")
def test_a_voice_is_given_the_sentence(run, captioner, tmp_path):
    spoken = tmp_path / "spoken"
    voice = tmp_path / "voice"
    voice.write_text(f'#!/bin/sh\necho "$1" >> "{spoken}"\n')
    voice.chmod(0o755)
    code, out, _ = run("narrate", SAMPLE, "--voice", voice)
    sentences = [update.text for update in captioner.stream(SAMPLE) if update.changed]
    assert code == 0
    assert len(out.splitlines()) == len(sentences)
    # All come at once here, and what comes while it speaks is not spoken.
    assert spoken.read_text().splitlines()[0] == sentences[0]
    assert set(spoken.read_text().splitlines()) <= set(sentences)


def test_what_cannot_be_narrated_is_one_line(run, tmp_path):
    assert run("narrate", tmp_path / "no.mp4") == (1, "", f"narrate.py: {tmp_path}/no.mp4: no such file\n")
    code, _, err = run("narrate", SAMPLE, "--voice", "no-such-voice")
    assert code == 2
    assert err.endswith("error: --voice no-such-voice: there is no such program\n")


# --- A question to a chat API -----------------------------------------------------------------------------------------

TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "additionalProperties": False,
}
IMAGE_PART = {
    "type": "object",
    "required": ["type", "image_url"],
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "type": "object",
            "required": ["url"],
            "properties": {
                "url": {"type": "string", "pattern": "^(https?://|data:image/(jpeg|png|gif|webp);base64,[A-Za-z0-9+/]+=*$)"},
                "detail": {"enum": ["auto", "low", "high"]},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
CHAT_COMPLETION_REQUEST = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": {"enum": ["system", "user", "assistant"]},
                    "name": {"type": "string"},
                    "content": {
                        "oneOf": [
                            {"type": "string"},
                            {"type": "array", "minItems": 1, "items": {"oneOf": [TEXT_PART, IMAGE_PART]}},
                        ]
                    },
                },
                "additionalProperties": False,
            },
        },
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
        "max_completion_tokens": {"type": ["integer", "null"]},
        "stream": {"type": ["boolean", "null"]},
    },
    "additionalProperties": False,
}
"""What a request for a chat completion may be: the part of the published schema that a question with images needs."""


class ChatServer:
    """A server on the loopback that keeps what it is sent, and answers with what it was told to."""

    def __init__(self, *, status=200, answer=None):
        self.requests = []
        server = self
        content = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "It eats."}}]}
        reply = json.dumps(content).encode() if answer is None else answer

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.requests.append((self.path, dict(self.headers), body))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def test_the_request_is_as_the_published_schema_has_it(run, monkeypatch):
    jsonschema = pytest.importorskip("jsonschema", reason="a development dependency")
    monkeypatch.setenv("OPENAI_API_KEY", "geheim")
    with ChatServer() as server:
        options = ("--model", "eyes", "--server", server.url, "--budget", 4, "--max-side", 320)
        code, out, err = run("ask", SAMPLE, "What does it do?", *options)
    assert (code, out, err) == (0, "It eats.\n", "")
    ((path, headers, sent),) = server.requests
    assert path == "/v1/chat/completions"
    assert (headers["Content-Type"], headers["Authorization"]) == ("application/json", "Bearer geheim")
    body = json.loads(sent)
    jsonschema.Draft202012Validator.check_schema(CHAT_COMPLETION_REQUEST)
    jsonschema.validate(body, CHAT_COMPLETION_REQUEST)
    assert body["model"] == "eyes"
    question, *parts = body["messages"][0]["content"]
    assert question["text"].endswith("What does it do?")
    times = [part["text"] for part in parts[::2]]
    assert 1 <= len(times) <= 4
    assert times[0] == "0:00.0"
    assert times == sorted(times)
    for part in parts[1::2]:
        data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/jpeg;base64,"), validate=True)
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, image.size) == ("JPEG", (320, 180))


def test_the_schema_refuses_what_a_server_would():
    jsonschema = pytest.importorskip("jsonschema", reason="a development dependency")
    validator = jsonschema.Draft202012Validator(CHAT_COMPLETION_REQUEST)
    for content in (
        [],
        [{"type": "text", "content": "hello"}],
        [{"type": "image_url", "image_url": "data:image/jpeg;base64,AAAA"}],
        [{"type": "image_url", "image_url": {"url": "data:image/jpeg,AAAA"}}],
        [{"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}}],
    ):
        assert not validator.is_valid({"model": "eyes", "messages": [{"role": "user", "content": content}]})
    assert not validator.is_valid({"model": "eyes", "messages": []})
    assert validator.is_valid({"model": "eyes", "messages": [{"role": "user", "content": "hello"}]})


def test_without_a_key_none_is_sent_and_the_key_is_never_shown(run, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ChatServer(status=401, answer=b'{"error": {"message": "who are you?"}}') as server:
        code, out, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
        monkeypatch.setenv("OPENAI_API_KEY", "geheim")
        _, _, again = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
    assert "Authorization" not in server.requests[0][1]
    assert (code, out) == (1, "")
    told = '{"error": {"message": "who are you?"}}'
    assert err == again == f"ask.py: {server.url}/chat/completions: 401 Unauthorized: {told}\n"


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": "hello"}]}'])
def test_what_is_no_answer_is_told(run, answer):
    with ChatServer(answer=answer) as server:
        code, out, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
    assert (code, out) == (1, "")
    assert err.startswith(f"ask.py: {server.url}/chat/completions: not an answer of a chat API (")
    assert err.count("\n") == 1


def test_a_server_that_is_not_there_and_a_bad_address_are_told(run):
    with ChatServer() as server:
        pass
    code, _, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
    assert code == 1
    assert err.startswith(f"ask.py: {server.url}/chat/completions: no answer (")
    for address in ("localhost:8000/v1", "http://me:geheim@localhost/v1"):
        code, _, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", address)
        assert code == 2
        assert "geheim" not in err
        assert err.endswith("is like http://localhost:8000/v1; a key belongs into OPENAI_API_KEY\n")
    code, _, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--budget", 0)
    assert (code, err) == (1, "ask.py: budget is 0: 1 frame or more is possible\n")


# --- A search over captions -------------------------------------------------------------------------------------------


@needs_the_model
def test_scenes_are_found_by_their_words(run, captioner, tmp_path):
    database = tmp_path / "films.db"
    for _ in range(2):  # the second time replaces the first
        code, out, _ = run("search", "index", database, SAMPLE)
        assert code == 0
    expected = [(segment.text, segment.start) for segment in captioner.timeline(SAMPLE)]
    assert out.startswith(f"{SAMPLE}: {len(expected)} scene")
    text, start = expected[-1]
    code, out, err = run("search", "find", database, *text.upper().split())
    assert (code, err) == (0, "")
    assert f"{SAMPLE}  0:{int(start):02d}  {text}" in out.splitlines()
    assert run("search", "find", database, "zeppelin") == (0, "", "")


def test_words_are_found_without_their_endings_and_are_never_taken_for_a_query(run, tmp_path):
    path = tmp_path / "films.db"
    with sqlite3.connect(path) as database:
        database.execute(example("search").SCENES)
        rows = [("two dogs are running", "a.mp4", 0.0), ("a dog is sitting", "b.mp4", 65.0)]
        database.executemany("INSERT INTO scenes VALUES (?, ?, ?)", rows)
    database.close()
    assert run("search", "find", path, "dog", "RUNS") == (0, "a.mp4  0:00  two dogs are running\n", "")
    assert run("search", "find", path, "sitting") == (0, "b.mp4  1:05  a dog is sitting\n", "")
    assert len(run("search", "find", path, "dogs", "--limit", 1)[1].splitlines()) == 1
    for words in (['"'], ["NEAR(", "a"], ["it's"], ["cat*"], ["dog:x"]):
        assert run("search", "find", path, *words) == (0, "", "")


def test_what_cannot_be_searched_is_one_line(run, tmp_path):
    assert run("search", "find", SAMPLE, "bird") == (1, "", f"search.py: {SAMPLE}: file is not a database\n")


@needs_the_model
@pytest.mark.usefixtures("captioner")
def test_a_bad_video_does_not_undo_the_ones_before_it(run, tmp_path):
    database = tmp_path / "films.db"
    code, out, err = run("search", "index", database, SAMPLE, tmp_path / "no.mp4")
    assert code == 1
    assert out.startswith(f"{SAMPLE}: ")
    assert err == f"search.py: {tmp_path}/no.mp4: no such file\n"
    with sqlite3.connect(database) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM scenes WHERE video = ?", [str(SAMPLE)])
    connection.close()
    assert count > 0
