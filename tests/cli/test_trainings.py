import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Picknet

from picknet.cli.trainings import _TrainingDisplay
from picknet.data.split import DataFolder

# --- train ---


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that `picknet train` passes on; nothing is trained."""
    arguments: dict[str, Any] = {}

    def train(config: Any, **rest: Any) -> Path:
        arguments.update(rest, config=config)
        progress = rest["progress"]
        progress.on_clip("train", 1, 2)
        progress.on_clip("train", 2, 2)
        progress.on_note("2 clips of the train split, 1 missing")
        progress.on_epoch("supervision", 1, 2, {"loss": 2.51, "val_cider": 31.25, "val_picks": 30.0, "best": 31.25})
        return Path(rest["out"]) / "model"

    monkeypatch.setattr("picknet.training.recipe.train", train)
    return arguments


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text("seed = 3\n")
    return path


def test_train_passes_its_options_on_and_prints_a_line_per_epoch(
    picknet: Picknet, tmp_path: Path, config: Path, trained: dict[str, Any]
) -> None:
    code, out, err = picknet(
        "train", config, "--data", tmp_path, "--out", "RUN", "--set", "reward.penalty=-2", "--set", "beam=4",
        "--stage", "supervision", "--stage", "adaptation", "--device", "cpu", "--cache", "CACHE",
    )  # fmt: skip
    assert code == 0
    assert (trained["config"], trained["settings"]) == (config, ["reward.penalty=-2", "beam=4"])
    assert trained["data"] == (DataFolder("msvd", tmp_path),)
    assert (trained["out"], trained["cache"]) == (Path("RUN"), Path("CACHE"))
    assert trained["stages"] == ["supervision", "adaptation"]
    assert (trained["start"], trained["resume"], trained["device"]) == (None, False, "cpu")
    assert (trained["fold"], trained["judges"]) == (None, ())
    assert out.splitlines() == [
        "train: 2 clips decoded",
        "supervision 1/2: loss 2.51, val cider 31.25, val picks 30, best 31.25",
        f"{Path('RUN') / 'model'}: trained; try picknet caption VIDEO --model RUN",
    ]
    assert err == "picknet: 2 clips of the train split, 1 missing\n"
    quiet = picknet("train", config, "--data", tmp_path, "--out", "RUN", "-q")
    assert quiet == (0, out.splitlines(keepends=True)[-1], "")


def test_fine_tuning_by_default_takes_a_folder_of_ones_own_clips(
    picknet: Picknet, tmp_path: Path, trained: dict[str, Any]
) -> None:
    code, _, _ = picknet("train", "--from", "msvd", "--data", tmp_path, "--out", "RUN", "--set", "seed=7")
    assert code == 0
    assert (trained["data"], trained["start"]) == ((DataFolder("folder", tmp_path),), "msvd")
    assert (trained["config"], trained["stages"], trained["settings"]) == (None, None, ["seed=7"])


def test_train_takes_several_data_sets_a_fold_and_judges(
    picknet: Picknet, tmp_path: Path, config: Path, trained: dict[str, Any]
) -> None:
    for name in ("pictures", "videos"):
        (tmp_path / name).mkdir()
    code, _, _ = picknet(
        "train", config, "--data", f"coco={tmp_path}/pictures", "--data", f"msrvtt={tmp_path}/videos", "--out", "RUN",
        "--fold", "2/5", "--judge", "A", "--judge", "B=msrvtt",
    )  # fmt: skip
    assert code == 0
    assert trained["data"] == (DataFolder("coco", tmp_path / "pictures"), DataFolder("msrvtt", tmp_path / "videos"))
    assert (trained["fold"], trained["judges"]) == ("2/5", ["A", "B=msrvtt"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no settings: name a config file, such as configs/msvd.toml, or a model to start from (--from)"),
        (["no.toml"], "no.toml: cannot be read (No such file or directory)"),
        (
            ["small.toml", "--set", "reward.penality=-2"],
            "small.toml: unknown setting 'reward.penality'; did you mean 'reward.penalty'?",
        ),
        (["small.toml", "--fold", "6/5"], "--fold 6/5: expected K/N, such as 1/5 for the first of five"),
        (
            ["small.toml", "--stage", "adaptation", "--set", "adaptation.epochs=0"],
            "--stage adaptation: adaptation.epochs is 0, so nothing would be trained; set it, as in "
            "--set adaptation.epochs=10 (stages with epochs: supervision (100), reinforcement (100))",
        ),
        (
            ["small.toml", "--stage", "reinforcement"],
            "reinforcement needs a trained captioner to reward picks: start from a model (--from), or run supervision "
            "first (--stage supervision, then --stage reinforcement --resume)",
        ),
    ],
)
@pytest.mark.usefixtures("config")
def test_a_training_that_cannot_be_is_a_usage_error(
    options: list[str], message: str, picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert picknet("train", *options, "--data", ".", "--out", "RUN") == (2, "", f"picknet: {message}\n")
    assert not Path("RUN").exists()


def test_training_without_pytorch_says_what_to_install(tmp_path: Path, config: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from picknet.cli import main\n"
        f"main(['train', '{config.name}', '--data', '.', '--out', 'RUN'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == 'picknet: training needs torch, which is not installed; pip install "picknet[train]"\n'


def test_the_progress_bar_shows_time_left_and_all_figures_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with _TrainingDisplay() as display:
        for epoch in (1, 2):
            figures = {"loss": 2.714, "reward": -0.123, "picks": 6.25, "val_cider": 61.75, "best_epoch": 7.0}
            display.on_epoch("reinforcement", epoch, 200, figures)
    err = capsys.readouterr().err
    for shown in ("reinforcement", "2/200", ":", "loss 2.714", "reward -0.123", "picks 6.25", "61.75"):
        assert shown in err
    assert "…" not in err


# --- export and report ---


def test_export_adds_facts_to_the_card(picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}

    def export_run(run: Path, out: Path, *, facts: dict[str, Any], on_clip: Callable[[], object], **rest: Any) -> None:
        on_clip()
        passed.update(rest)
        out.mkdir()
        (out / "card.json").write_text(json.dumps({"stages": {}, "licence": "unknown"} | facts))

    monkeypatch.setattr("picknet.training.recipe.export_run", export_run)
    (tmp_path / "facts.json").write_text('{"licence": "Apache-2.0"}')
    out = tmp_path / "model"
    code, printed, _ = picknet("export", "RUN", out, "--card", tmp_path / "facts.json")
    assert (code, printed) == (0, f"{out}\n")
    assert json.loads((out / "card.json").read_text()) == {"stages": {}, "licence": "Apache-2.0"}
    assert passed == {"data": (), "min_share": 0.0}
    options = ["--min-share", "0.001", "--data", f"coco={tmp_path}", "--data", f"msvd={tmp_path}"]
    assert picknet("export", "RUN", tmp_path / "short", *options)[0] == 0
    assert passed == {"data": (DataFolder("coco", tmp_path), DataFolder("msvd", tmp_path)), "min_share": 0.001}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-share", "0.1"], "--min-share and --data belong together"),
        (["--data", "folder=."], "--min-share and --data belong together"),
        (["--min-share", "1.5", "--data", "folder=."], "--min-share 1.5: a share of captions between 0 and 1"),
        (["--min-share", "nan", "--data", "folder=."], "--min-share nan: a share of captions between 0 and 1"),
        (["--min-share", "0.1", "--data", "here"], "here: which data set? Name it"),
        ([], "run: not a run folder with a checkpoint, and not a model folder"),
    ],
)
def test_exports_that_are_not_possible(picknet: Picknet, tmp_path: Path, options: list[str], message: str) -> None:
    code, out, err = picknet("export", tmp_path / "run", tmp_path / "out", *options)
    assert (code != 0, out) == (True, "")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_report_writes_its_page_and_prints_its_path(picknet: Picknet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.csv").write_text("stage,epoch,loss,val_cider,val_picks\nsupervision,1,3.5,42.0,6.0\n")
    code, out, err = picknet("report", run, "--out", tmp_path / "report")
    assert (code, out, err) == (0, f"{tmp_path}/report/report.md\n", "")
    assert "42.0" in (tmp_path / "report" / "report.md").read_text()
    code, out, err = picknet("report", tmp_path, "--out", tmp_path / "other")
    assert (code, out) == (1, "")
    assert err.startswith(f"picknet: {tmp_path}: ")
