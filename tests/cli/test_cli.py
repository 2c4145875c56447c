import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import Picknet, on_linux, subprocess_of
from folders import unsealed

from picknet.captioner import Caption
from picknet.cli import main
from picknet.picking.picker import Pick

# --- report ---




# --- info, help, version ---


def test_info_tells_of_the_model_in_text_and_json(picknet: Picknet, model_folder: Path) -> None:
    code, out, _ = picknet("info", model_folder)
    facts = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in out.splitlines() if "  " in line.strip())
    assert code == 0
    assert facts["CNN"] == "efficientnet_lite0, 64 x 64 pixels"
    assert facts["words"] == "16"  # twelve words and four special ones
    assert facts["trained on"] == "nothing"
    _, out, _ = picknet("info", model_folder, "--format", "json")
    content = json.loads(out)
    assert content["bytes"] == sum(path.stat().st_size for path in model_folder.iterdir())
    assert (content["num_frames"], content["card"]) == (30, {"trained_on": "nothing"})
    _, out, _ = picknet("info", model_folder, "--format", "csv")
    assert out.splitlines()[:2] == ["name,value", f"model,{model_folder}"]
    assert out.splitlines()[-1] == "card.trained_on,nothing"
    cells = dict(csv.reader(out.splitlines()))
    assert (json.loads(cells["manifest"]), json.loads(cells["styles"])) == (content["manifest"], [])


def test_info_says_which_cider_is_greedy(picknet: Picknet, model_folder: Path, tmp_path: Path) -> None:
    model = unsealed(model_folder, tmp_path / "model")
    card = {
        "description": "a test",
        "stages": {"supervision": {"epoch": 9, "val_cider": 96.18, "val_picks": 4.0}},
        "clips": {"train": {"used": 1200, "missing": 3}},
        "scores": {"msvd_val": "beam 5: CIDEr 108.2"},
        "known_failures": ["counts poorly"],
        "licence": "Apache-2.0",
        "colour": "red",
    }
    (model / "card.json").write_text(json.dumps(card))
    _, out, _ = picknet("info", model)
    lines = [re.sub(r"(?<=\S)  +", ": ", line) for line in out.splitlines()]
    assert lines[0] == f"{model}: a test"
    assert "  supervision: epoch 9 kept, validation CIDEr 96.18 (greedy), 4.0 evenly spaced frames a clip" in lines
    assert "  msvd val: beam 5: CIDEr 108.2" in lines
    assert "  train clips: 1,200 used, 3 missing" in lines
    assert [line for line in lines if line and not line.startswith(" ")][1:] == [
        "Model", "Training", "Scores", "Known failures", "Licence", "More",
    ]  # fmt: skip
    assert lines[-3:] == ["", "More", "  colour: red"]
    assert "  - counts poorly" in lines


def test_info_prints_the_model_card_in_markdown(picknet: Picknet, model_folder: Path, tmp_path: Path) -> None:
    code, out, _ = picknet("info", model_folder, "--format", "markdown")
    assert code == 0
    assert out == (model_folder / "README.md").read_text(encoding="utf-8")  # export has written it
    assert "- **trained on**: nothing\n" in out
    picknet("info", model_folder, "--out", tmp_path / "card.md")
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == out


def test_info_shows_a_card_whatever_was_written_into_it(picknet: Picknet, model_folder: Path, tmp_path: Path) -> None:
    model = unsealed(model_folder, tmp_path / "model")
    card = {
        "stages": {"supervision": {"{best}": 1, "epoch": None, "}": "{"}},
        "clips": {"train": {"used": "all", "missing": None}},
    }
    (model / "card.json").write_text(json.dumps(card))
    code, out, _ = picknet("info", model)
    assert code == 0
    assert "{best} 1, epoch None kept, } {\n" in out
    assert '{"used": "all", "missing": null}\n' in out


def test_help_answers_at_once_and_loads_nothing_heavy() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "picknet", "--help"], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
    print(f"picknet --help: {min(seconds):.2f} s")
    assert min(seconds) < 2
    for command in ("caption", "pick", "evaluate", "calibrate", "train", "export", "info"):
        assert f" {command} " in done.stdout
    code = "import sys, picknet.cli; print({'numpy', 'av', 'openvino', 'torch', 'PIL'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_help_has_a_heading_for_every_kind_of_option_and_command(picknet: Picknet) -> None:
    headings = [line for line in picknet("--help").out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", "Describe videos:", "Models:", "Measure models:"]
    code, out, _ = picknet("caption", "-h")
    assert code == 0
    assert out.startswith("Usage: picknet caption [OPTIONS] VIDEO...\n")
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Arguments:", "Output:", "Model:", "Picking frames:", "Many videos:", "Limits:", "Options:"]
    assert "[default: the model's]" in out
    assert "..." not in picknet("--help").out.replace("COMMAND ...", "")  # no summary is cut off


@pytest.mark.parametrize("command", ["caption", "timeline", "stream", "info"])
def test_the_same_options_have_the_same_help_everywhere(picknet: Picknet, command: str) -> None:
    out = picknet(command, "--help").out
    for option in ("-f, --format FORMAT", "-o, --out", "-q, --quiet"):
        assert option in out


def test_a_shell_can_complete_commands_options_and_formats() -> None:
    def completed(words: str) -> list[str]:
        settings = {"_PICKNET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "picknet"]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("picknet ca") == ["caption", "calibrate"]
    assert completed("picknet caption --ca") == ["--candidates"]
    assert completed("picknet film.mp4 --ca") == ["--candidates"]
    assert completed("picknet timeline film.mp4 --format s") == ["srt", "scenes"]
    assert completed("picknet caption fi") == []  # the shell completes file names


def test_the_completion_script_is_printed_for_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer._completion_shared.shellingham.detect_shell", lambda: ("zsh", "/bin/zsh"))
    with pytest.raises(SystemExit) as exit:
        main(["--show-completion"])
    assert exit.value.code == 0


def test_version_and_the_bare_command(picknet: Picknet) -> None:
    from importlib.metadata import version

    assert picknet("--version") == (0, f"picknet {version('picknet')}\n", "")
    code, out, _ = picknet()
    assert code == 0
    assert "Describe a video from the few frames that matter." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["caption"], "Missing argument 'VIDEO"),
        (["caption", "a.mp4", "--bem", "3"], "No such option: --bem"),
        (["caption", "a.mp4", "--beam", "0"], "Invalid value for '--beam': "),
        (["caption", "a.mp4", "--candidates", "0"], "Invalid value for '--candidates': "),
        (["caption", "a.mp4", "--candidates", "51"], "Invalid value for '--candidates': '51' should be less"),
        (["caption", "a.mp4", "--candidates", "many"], "Invalid value for '--candidates': 'many' should be a valid"),
        (["caption", "a.mp4", "--timeout", "inf"], "Invalid value for '--timeout': "),
        (["calibrate", "--data", "."], "Missing option '--model'"),
        (["caption", "a.mp4", "--picker", "best"], "Invalid value for '--picker': 'best' is not one of 'picknet', "),
        (["evaluate", "--data", ".", "--histograms", "h.pdf"], "--histograms h.pdf: a picture ends in .png, .svg"),
        (["captoin", "a.mp4"], "captoin: no such command or file; did you mean caption? (see picknet --help)"),
        (["holiday"], "holiday: no such command or file (see picknet --help)"),
        ([""], "'': no such command or file (see picknet --help)"),
        (["--bem", "3"], "No such option: --bem"),
        (["caption", "a.mp4", "--out", "a.doc"], "--out a.doc: unknown suffix; pass --format, or use"),
        (["caption", "a.mp4", "--out", "a.csv", "--format", "json"], "--out a.csv: the suffix means csv, but --format"),
        (["caption", "a.mp4", "-"], "-: standard input is one video, so it has to be the only one"),
        (["stream", "a.mp4", "--format", "srt"], "Invalid value for '--format' / '-f': "),
        (
            ["caption", "a.mp4", "--k", "3", "--picker", "scene"],
            "--k 3: does not apply to scene, only to picknet, uniform, random, kmeans, hecate, every and coin",
        ),
        (
            ["caption", "a.mp4", "--k", "3", "--rate", "2"],
            "--rate 2: --k 3 says how many frames picknet picks; leave one of them out",
        ),
        (["stream", "a.mp4", "--k", "3"], "No such option: --k"),
        (["evaluate", "--data", ".", "--picker", "best"], "Invalid value for '--picker': 'best' is not one of picknet"),
        *(
            (
                ["evaluate", "--data", ".", "--picker", text],
                f"Invalid value for '--picker': '{text}': a number of picks comes after the colon, as in uniform:4",
            )
            for text in ("uniform:", "uniform:0", "uniform:-1", "uniform:x")
        ),
        (
            ["evaluate", "--data", ".", "--picker", "picknet", "--picker", "all:4"],
            "--k 4: does not apply to all, only to picknet, uniform, random, kmeans, hecate, every and coin",
        ),
        (
            ["evaluate", "--data", ".", "--picker", "picknet:4", "--k", "3"],
            "--k 3: every --picker has a k of its own",
        ),
        (
            ["evaluate", "--data", ".", "--picker", "coin", "--change", "9"],
            "--change 9: does not apply to coin, only to scene",
        ),
        (
            ["evaluate", "--data", ".", "--examples", "e.png", "--picker", "all", "--picker", "picknet"],
            "--examples e.png: one picture shows one picker, not 2",
        ),
        (
            ["evaluate", "--data", ".", "--examples", "e.gif"],
            "--examples e.gif: a picture ends in .png, .jpg, .jpeg, .webp",
        ),
        (["evaluate", "--data", ".", "--num-examples", "3"], "--num-examples 3: only applies to --examples FILE"),
        (
            ["pick", "a.mp4", "--format", "csv", "--max-side", "99"],
            "--max-side 99: csv holds no images; pass --out DIR for them",
        ),
        (
            ["compare", "--data", ".", "--model", "a", "--model", "b", "--clips", "c.txt"],
            "2 models and 1 list of clips: each --model needs one --clips",
        ),
        (
            ["compare", "--data", ".", "--clips", "c.txt", "--clips", "d.txt"],
            "1 model and 2 lists of clips: each --model needs one --clips",
        ),
        (["train", "no.toml", "--data", ".", "--out", "RUN"], "no.toml: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(picknet: Picknet, arguments: list[str], message: str) -> None:
    code, out, err = picknet(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"picknet: {message}")
    assert err.count("\n") == 1


def test_a_file_whose_name_begins_with_a_dash_is_told_how_to_be_named(
    picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-x8.mp4").touch()
    code, out, err = picknet("caption", "-x8.mp4")
    assert (code, out) == (2, "")
    assert err.startswith("picknet: -x8.mp4 begins with a dash, so it is taken for options: write ./-x8.mp4 (see ")


# --- What can go wrong around it ---


def test_a_model_that_is_not_there_is_one_line(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    code, out, err = picknet("caption", clips, "--model", tmp_path / "nothing")
    assert (code, out) == (1, "")
    assert err.startswith(f"picknet: {tmp_path}/nothing: no such model; possible are ")
    code, _, err = picknet("info", clips)
    assert code == 1
    assert err.startswith(f"picknet: {clips}: incomplete model: config.toml, words.txt, card.json")


@on_linux
def test_ctrl_c_is_one_line_and_exit_code_130(clips: Path, model_folder: Path) -> None:
    # A shell lets background commands ignore Ctrl-C, and children inherit that.
    process = subprocess_of(
        "caption", *[clips / "cat.mp4"] * 500, "--model", model_folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout
    process.stdout.readline()
    for _ in range(5):  # impatient
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "picknet: interrupted\n")


def test_ctrl_c_while_the_command_line_is_read_is_told_as_well(
    picknet: Picknet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupt)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # from then on Ctrl-C would be ignored, here as well
    assert picknet("caption", "cat.mp4") == (130, "", "picknet: interrupted\n")


@on_linux
@pytest.mark.parametrize("jobs", [1, 2])
def test_sigterm_ends_with_143_and_keeps_what_was_done(
    clips: Path, model_folder: Path, tmp_path: Path, jobs: int
) -> None:
    out = tmp_path / "captions.csv"
    options = ("--model", model_folder, "--out", out, "--jobs", jobs)
    process = subprocess_of("caption", *[clips / "dog.mkv"] * 500, *options)
    part = tmp_path / "captions.csv.part"
    while not part.exists() or part.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, f"picknet: {part}: holds the results so far\n")
    assert not out.exists()
    assert part.read_text().startswith("video,caption,")


@on_linux
def test_sigterm_is_heard_where_a_library_loses_its_exception() -> None:
    """As PyAV does, while it makes an error of a frame that cannot be decoded."""
    program = (
        "import contextlib, time\n"
        "import picknet.cli as cli\n"
        "cli.HEARD_SECONDS = 0.2\n"
        "with cli._ended_by_sigterm():\n"
        "    for number in range(2):\n"
        "        with contextlib.suppress(SystemExit):\n"
        "            print(number, flush=True)\n"
        "            time.sleep(30)\n"
        "    try:\n"
        "        time.sleep(30)\n"
        "    finally:\n"  # which is not disturbed
        "        with contextlib.suppress(KeyError):\n"
        "            {}['a']\n"
        "        time.sleep(1)\n"
        "        print('in order')\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    assert process.stdout.readline() == "0\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20) == ("1\nin order\n", "")
    assert process.returncode == 143


@on_linux
def test_a_reader_that_has_enough_ends_the_command_without_a_word(clips: Path, model_folder: Path) -> None:
    process = subprocess_of("caption", *[clips / "dog.mkv"] * 50, "--model", model_folder)
    assert process.stdout
    assert process.stdout.readline().startswith(str(clips))
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1


@on_linux
@pytest.mark.parametrize("command", ["caption", "help"])
def test_a_full_disk_behind_standard_output_is_one_line(clips: Path, model_folder: Path, command: str) -> None:
    arguments = ["caption", clips / "dog.mkv", "--model", model_folder] if command == "caption" else ["--help"]
    with open("/dev/full", "w") as full:
        process = subprocess_of(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "picknet: standard output: No space left on device\n")


def test_results_reach_a_reader_line_by_line(clips: Path, model_folder: Path) -> None:
    process = subprocess_of("caption", *[clips / "dog.mkv"] * 500, "--model", model_folder)
    assert process.stdout
    assert process.stdout.readline()
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_the_bar_of_many_videos_is_on_standard_error_and_only_for_people(
    picknet: Picknet, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf:
        def caption(self, video: str, **_: object) -> Caption:
            return Caption("a cat", (Pick(0, 0.0),), 30, video, "m", None, -1.0)

        picker = None

    monkeypatch.setattr("picknet.captioner.load", lambda model, style: Deaf())
    assert picknet("caption", clips / "cat.mp4", clips / "dog.mkv").err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, out, err = picknet("caption", clips / "cat.mp4", clips / "dog.mkv")
    assert (code, out) == (0, f"{clips / 'cat.mp4'}: a cat\n{clips / 'dog.mkv'}: a cat\n")
    assert "captioning" in err
    assert "2/2" in err


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("closed", "code", "message"),
    [
        ("<&-", 0, ""),
        (">&-", 1, "picknet: standard output: Bad file descriptor\n"),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
def test_results_that_nobody_can_read_are_a_failure_and_other_closed_streams_are_none(
    model_folder: Path, closed: str, code: int, message: str
) -> None:
    command = shlex.join([sys.executable, "-m", "picknet", "info", str(model_folder)])
    done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_a_closed_standard_output_is_no_matter_where_results_go_to_a_file(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "picknet", "info", str(model_folder), "--out", str(tmp_path / "info.json")]
    done = subprocess.run(f"{shlex.join(command)} >&-", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "info.json").read_text())["vocabulary"] == 16
