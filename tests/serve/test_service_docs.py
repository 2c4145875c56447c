"""The command lines of docs/service.md work as shown, and so does the command itself."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import on_linux, subprocess_of
from services import ROOT, Running, serving, until

from picknet.captioner import load
from picknet.cli import main
from picknet.model.folder import DEFAULT_MODEL, SHIPPED
from picknet.serve.service import Limits

PAGE = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
JOB = "4kO0Xw1Jr2mDq8cUuV9s7A"
"""The job of the page."""

pytestmark = pytest.mark.skipif(not (SHIPPED / DEFAULT_MODEL).is_dir(), reason="no model in the package yet")


@pytest.fixture(scope="module")
def shipped() -> Iterator[Running]:
    with serving(load(), Limits(workers=1), token=None) as started:
        yield started


def curl_lines() -> list[tuple[str, str]]:
    """Each line, and the output shown below it."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S)
    commands = [command for block in blocks for command in re.split(r"^\$ ", block, flags=re.M) if command]
    return [tuple(command.split("\n", 1)) for command in commands if command.startswith("curl")]  # type: ignore[misc]


def test_the_curl_lines_of_the_page_work(shipped: Running) -> None:
    job, outputs = "", []
    lines = curl_lines()
    assert len(lines) == 6
    for line, shown in lines:
        command = line.replace("http://127.0.0.1:8000", shipped.address).replace(JOB, job)
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
        if JOB in shown:
            job = json.loads(done.stdout)["id"]
            assert json.loads(done.stdout).keys() == json.loads(shown).keys()  # it may have begun already
        elif shown:
            assert done.stdout == shown
        outputs.append(done.stdout)
    caption, parts, _, _, events, subtitles = outputs
    expected = shipped.captioner.caption(ROOT / "samples" / "cockatoo.mp4", candidates=3).to_dict()
    assert json.loads(caption) == expected | {"video": "cockatoo.mp4"}
    assert json.loads(parts)[1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert "event: segment" in events
    assert '"state": "done"' in events
    assert subtitles.startswith("WEBVTT\n\n")


def test_only_own_names_of_the_machine_are_answered_without_a_token(shipped: Running) -> None:
    command = ["curl", "-s", f"{shipped.address}/metrics", "-H", "Host: rebound.example"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0: other machines can reach this address; pass --token"),
        (["--token", "short"], "the token has 5 characters: 16 or more are needed"),
        (["--token", "a token with spaces"], "the token has a space, a control character or one that is not"),
        (["--token", "correct-horse-bättery"], "the token has a space, a control character or one that is not ASCII"),
        (["--timeout", "inf"], "'inf' should be less than or equal to 86400"),
        (["--job-timeout", "nan"], "'nan' should be less than or equal to 604800"),
        (["--root", "no/such"], "--root no/such: no such folder"),
        (["--samples", "no/such"], "--samples no/such: no such folder"),
        (["--allow-sources", "a,localhost"], "--allow-sources localhost: not a public address; those inside"),
        (["--allow-sources", "http://a"], "--allow-sources http://a: a host name such as media.example or media.exam"),
    ],
)
def test_what_would_not_be_safe_is_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A service that starts deletes what an earlier one of its process number left, here that of other tests.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as exit:
        main(["serve", *arguments])
    assert exit.value.code in (1, 2)
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_and_leaves_nothing(
    shipped: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as exit:
        main(["serve", "--port", str(shipped.port)])
    assert exit.value.code == 1
    assert f"127.0.0.1:{shipped.port}: cannot listen there (Address already in use)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@on_linux
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path), "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    killed = subprocess_of("serve", "--port", "0", "--workers", "1", env=environment)
    assert killed.stderr is not None
    killed.stderr.readline()
    (left,) = tmp_path.glob(".uploads-picknet-*")
    (left / "upload").write_bytes(b"a client's video")
    killed.kill()
    killed.wait()
    process = subprocess_of("serve", "--port", "0", "--workers", "1", env=environment)
    try:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1]
        assert address.startswith("http://127.0.0.1:")
        done = subprocess.run(["/usr/bin/curl", "-s", f"{address}/readyz"], capture_output=True, check=True)
        assert done.stdout == b"ok\n"
        assert len(list(tmp_path.glob(".uploads-picknet-*"))) == 1
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
    until(lambda: not any(Path(f"/proc/{number}").exists() for number in children))
    assert list(tmp_path.iterdir()) == []
