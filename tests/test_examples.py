"""The examples and the notebook run, on the sample and against a server that validates requests."""

import ast
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
from picknet.model.folder import DEFAULT_MODEL, SHIPPED

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


class CachedCaptioner:
    """The shipped captioner with cached results, and never in real time."""

    def stream(self, source, *, fps=1.0, realtime=False, min_confidence=None):
        return iter(cached("stream", str(source), fps=fps, min_confidence=min_confidence))

    def timeline(self, source, *, min_confidence=None):
        return iter(cached("timeline", str(source), min_confidence=min_confidence))


@functools.cache
def cached(method, source, **options):
    return tuple(getattr(load_once(), method)(source, **options))


load_once = functools.cache(picknet.load)


@pytest.fixture
def captioner(monkeypatch):
    monkeypatch.setattr(picknet, "load", CachedCaptioner)
    return CachedCaptioner()


@pytest.mark.parametrize("name", NAMES)
def test_help_is_printed_and_missing_arguments_are_an_error(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert example(name).__doc__.splitlines()[0] in out
    code, out, err = run(name)
    assert (code, out) == (2, "")
    assert "error: the following arguments are required: " in err


def test_an_example_runs_as_a_script():
    command = [sys.executable, EXAMPLES / "search.py", "find", "no.db", "birds"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("error: no.db: no such database; create it with: search.py index\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_listed_in_the_readme(name):
    assert f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


# --- A camera that narrates -------------------------------------------------------------------------------------------


@needs_the_model
def test_a_caption_is_printed_when_it_changes(run, captioner):
    code, out, err = run("narrate", SAMPLE, "--min-confidence", 0.3)
    assert (code, err) == (0, "")
    printed = [line.split("  ", 1) for line in out.splitlines()]
    expected = [one for one in captioner.stream(SAMPLE, min_confidence=0.3) if one.changed and one.text]
    assert expected
    assert [text for _, text in printed] == [update.text for update in expected]
    assert [time for time, _ in printed] == [f"0:{int(update.seconds):02d}" for update in expected]


@needs_the_model
@pytest.mark.skipif(sys.platform == "win32", reason="the voice is a shell script")
def test_the_voice_program_gets_the_caption(run, captioner, tmp_path):
    spoken = tmp_path / "spoken"
    voice = tmp_path / "voice"
    voice.write_text(f'#!/bin/sh\necho "$1" >> "{spoken}"\n')
    voice.chmod(0o755)
    code, out, _ = run("narrate", SAMPLE, "--voice", voice, "--min-confidence", 0)
    sentences = [update.text for update in captioner.stream(SAMPLE, min_confidence=0) if update.changed]
    assert code == 0
    assert len(out.splitlines()) == len(sentences)
    # All captions arrive at once here, and those that arrive while the voice speaks are not spoken.
    assert spoken.read_text().splitlines()[0] == sentences[0]
    assert set(spoken.read_text().splitlines()) <= set(sentences)


def test_a_bad_source_or_voice_is_one_line_of_error(run, tmp_path):
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
"""Requests for a chat completion: the part of the published schema that a question with images uses."""


class ChatServer:
    """A local server that records requests and sends a fixed answer."""

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


def test_the_request_follows_the_published_schema(run, monkeypatch):
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


def test_the_schema_rejects_malformed_requests():
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


def test_no_key_is_sent_without_one_and_a_key_is_never_printed(run, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ChatServer(status=401, answer=b'{"error": {"message": "who are you?"}}') as server:
        code, out, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
        monkeypatch.setenv("OPENAI_API_KEY", "geheim")
        _, _, again = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
    assert "Authorization" not in server.requests[0][1]
    assert (code, out) == (1, "")
    body = '{"error": {"message": "who are you?"}}'
    assert err == again == f"ask.py: {server.url}/chat/completions: 401 Unauthorized: {body}\n"


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": "hello"}]}'])
def test_a_malformed_answer_is_an_error(run, answer):
    with ChatServer(answer=answer) as server:
        code, out, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
    assert (code, out) == (1, "")
    assert err.startswith(f"ask.py: {server.url}/chat/completions: not an answer of a chat API (")
    assert err.count("\n") == 1


def test_an_unreachable_server_and_a_bad_address_are_errors(run):
    with ChatServer() as server:
        pass
    code, _, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", server.url, "--budget", 1)
    assert code == 1
    assert err.startswith(f"ask.py: {server.url}/chat/completions: no answer (")
    for address in ("localhost:8000/v1", "http://me:geheim@localhost/v1"):
        code, _, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--server", address)
        assert code == 2
        assert "geheim" not in err
        assert err.endswith("expected an address like http://localhost:8000/v1; a key goes into OPENAI_API_KEY\n")
    code, _, err = run("ask", SAMPLE, "What?", "--model", "eyes", "--budget", 0)
    assert (code, err) == (1, "ask.py: budget is 0: 1 frame or more is possible\n")


# --- A search over captions -------------------------------------------------------------------------------------------


@needs_the_model
def test_scenes_are_found_by_words(run, captioner, tmp_path):
    database = tmp_path / "films.db"
    for _ in range(2):  # the second run replaces the first
        code, out, _ = run("search", "index", database, SAMPLE)
        assert code == 0
    expected = [(segment.text, segment.start) for segment in captioner.timeline(SAMPLE, min_confidence=0.3)]
    expected = [(text, start) for text, start in expected if text]
    assert out.startswith(f"{SAMPLE}: {len(expected)} scene")
    text, start = expected[-1]
    code, out, err = run("search", "find", database, *text.upper().split())
    assert (code, err) == (0, "")
    assert f"{SAMPLE}  0:{int(start):02d}  {text}" in out.splitlines()
    assert run("search", "find", database, "zeppelin") == (0, "", "")


def test_words_are_stemmed_and_never_taken_for_query_syntax(run, tmp_path):
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


def test_a_file_that_is_not_a_database_is_an_error(run, tmp_path):
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


# --- The notebook -----------------------------------------------------------------------------------------------------

NOTEBOOK = json.loads((EXAMPLES / "picknet.ipynb").read_text(encoding="utf-8"))


def test_the_notebook_is_valid_and_has_no_stored_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@needs_the_model
def test_the_notebook_runs_and_its_results_show_themselves(tmp_path, monkeypatch):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "cockatoo.mp4").symlink_to(SAMPLE)
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")  # where Jupyter runs a notebook: beside it
    monkeypatch.setattr(picknet, "load", load_once)
    names = {}
    shown = []
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            # As Jupyter does: run the statements, and show the value of a last expression.
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell["id"], "exec"), names)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) >= 2
    assert all("data:image/jpeg;base64," in page for page in pages)
    assert names["caption"].text in pages[0]
    assert sum(map(len, pages)) < 200_000
    assert names["turned"].num_picks > names["caption"].num_picks  # the dial's last and highest rate
    assert names["answer"].endswith("0:13.6.")  # the stub was shown the picked frames
