"""Reports of run folders: means and spreads by hand, folders old and cut read as far as they go."""

import json
from pathlib import Path
from typing import Any

import pytest

from picknet.study.report import NotARun, chart, groups, markdown, read_run, read_runs, write

HEADER = "stage,epoch,loss,reward,val_cider,val_picks,seconds"


def make_run(
    folder: Path,
    *,
    seed: int = 0,
    ciders: tuple[float, float] = (60.0, 64.0),
    settings: str = "beam = 5\n",
    more: dict[str, Any] | None = None,
    command: str | None = None,
) -> Path:
    """A finished run of two stages, two epochs each, 10 seconds an epoch."""
    folder.mkdir(parents=True)
    noted = {"command": command} if command else {}
    (folder / "config.toml").write_text(f"seed = {seed}\n{settings}[model]\ndropout = 0.3\n")
    (folder / "origin.json").write_text(json.dumps({"dataset": "msvd", "from": None} | (more or {})))
    (folder / "versions.json").write_text(json.dumps({"python": "3.11", "torch": "2.6", "commit": "abc1234"} | noted))
    clips = {"train": {"used": ["a", "b"], "missing": [["c", "gone"]]}, "val": {"used": ["d"], "missing": []}}
    (folder / "clips.json").write_text(json.dumps(clips))
    rows = [
        f"supervision,1,3.0,,{ciders[0] - 9},6.0,10.0",
        f"supervision,2,2.0,,{ciders[0]},6.0,10.0",
        f"reinforcement,1,,0.5,{ciders[1] + 1},12.0,10.0",
        f"reinforcement,2,,0.7,{ciders[1]},4.0,10.0",
    ]
    (folder / "metrics.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (folder / "model").mkdir()
    stages = {
        "supervision": {"epoch": 2, "val_cider": ciders[0], "val_picks": 6.0},
        "reinforcement": {"epoch": 2, "val_cider": ciders[1], "val_picks": 4.0},
    }
    (folder / "model" / "card.json").write_text(json.dumps({"stages": stages}))
    return folder


def cells(text: str, first: str) -> list[str]:
    """The cells of the table's row that begins with this."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_gain_of_a_stage_is_the_mean_over_seeds_with_its_spread(tmp_path: Path) -> None:
    ciders = [(60.0, 64.0), (62.0, 64.0), (64.0, 67.0)]
    runs = [read_run(make_run(tmp_path / f"s{n}", seed=n, ciders=pair)) for n, pair in enumerate(ciders)]
    text = markdown(runs, curves=None)
    assert "## 1. 3 runs, seeds 0, 1, 2" in text
    # 60, 62, 64: mean 62, deviation 2. Added 4, 2, 3: mean 3, deviation 1. 64, 64, 67: mean 65, deviation √3.
    assert cells(text, "supervision") == [
        "supervision", "3", "2 ± 0", "62.0 ± 2.0", "–", "6.0 ± 0.0", "2 ± 0", "20 ± 0",
    ]  # fmt: skip
    assert cells(text, "reinforcement")[3:6] == ["65.0 ± 1.7", "+3.0 ± 1.0", "4.0 ± 0.0"]
    assert runs[0].gaps == []
    assert "missing" not in text.split("```")[-1]


def test_a_run_is_listed_with_clips_versions_commit_cost_and_command(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "s3", seed=3))
    text = markdown([run], curves=None)
    assert cells(text, f"{tmp_path}/s3") == [
        f"{tmp_path}/s3", "3", "2 (1 missing)", "1", "4", "40", "3.11", "2.6", "abc1234",
    ]  # fmt: skip
    assert f"$ picknet train {tmp_path}/s3/config.toml --data msvd=DATA --out {tmp_path}/s3-again\n" in text
    assert cells(text, "supervision")[3] == "60.0"  # one run, no spread


def test_a_recorded_command_is_shown(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", command="picknet train configs/msvd.toml --data X --out run"))
    assert "```console\n$ picknet train configs/msvd.toml --data X --out run\n```" in markdown([run], curves=None)


def test_the_command_of_a_fine_tuned_run_names_model_and_stages(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", more={"dataset": "coco+msrvtt", "from": "old/model"}))
    again = "--data coco=DATA --data msrvtt=DATA --from old/model --stage supervision --stage reinforcement --out"
    assert again in markdown([run], curves=None)


def test_runs_with_different_settings_are_separate_and_the_differences_are_listed(tmp_path: Path) -> None:
    runs = [
        read_run(make_run(tmp_path / "a")),
        read_run(make_run(tmp_path / "b", settings="beam = 1\nlength_exponent = 0.7\n")),
        read_run(make_run(tmp_path / "c", seed=1)),
    ]
    assert [[Path(run.name).name for run in group] for group in groups(runs)] == [["a", "c"], ["b"]]
    text = markdown(runs, curves=None)
    assert cells(text, "beam") == ["beam", "5", "1"]
    assert cells(text, "length_exponent") == ["length_exponent", "–", "0.7"]
    assert "model.dropout" not in text


def test_runs_of_different_clips_are_separate(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, seed=seed) for seed, name in enumerate("abc")]
    listed = json.loads((folders[1] / "clips.json").read_text())
    (folders[1] / "clips.json").write_text(json.dumps(listed | {"val": {"used": ["e"], "missing": []}}))
    runs = read_runs(folders)
    assert [[Path(run.name).name for run in group] for group in groups(runs)] == [["a", "c"], ["b"]]
    text = markdown(runs, curves=None)
    assert cells(text, "val clips, by their names")[1:] == ["1", "1"]
    assert "train clips, by their names" not in text


def test_a_run_that_is_named_twice_is_one_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "s0")
    runs = read_runs([folder, tmp_path / "x" / ".." / "s0"])
    assert [run.name for run in runs] == [str(folder)]


def test_an_old_run_without_seconds_is_read_and_the_gap_is_listed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "old")
    lines = (folder / "metrics.csv").read_text().splitlines()
    (folder / "metrics.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    (folder / "origin.json").unlink()
    run = read_run(folder)
    assert list(run.gaps) == ["metrics.csv has no seconds, so the cost of training is not known", "no origin.json"]
    text = markdown([run], curves=None)
    assert cells(text, "supervision")[-1] == "–"
    assert f"- {folder}: no origin.json" in text


def test_an_incomplete_run_is_reported_from_its_log(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "cut")
    (folder / "model" / "card.json").unlink()
    with (folder / "metrics.csv").open("a") as log:
        log.write("reinforcement,3,,0.")
    run = read_run(folder)
    assert len(run.epochs) == 4
    assert "line 6 of metrics.csv is incomplete or not a row of numbers; it is left out" in run.gaps
    assert "no model/card.json" in run.gaps
    # The card would tell epoch 2, whose picks are within the limits; the log only knows the highest.
    assert [(result.stage, result.best_epoch, result.val_cider) for result in run.results] == [
        ("supervision", 2, 60.0),
        ("reinforcement", 1, 65.0),
    ]
    assert sum("that of the highest CIDEr in metrics.csv" in gap for gap in run.gaps) == 2


@pytest.mark.parametrize("part", ["config.toml", "clips.json", "versions.json", "model/card.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]\nx", b"\xff\xfe", b""])
def test_a_damaged_file_is_a_gap_and_not_an_error(tmp_path: Path, part: str, content: bytes) -> None:
    folder = make_run(tmp_path / "run")
    (folder / part).write_bytes(content)
    run = read_run(folder)
    assert content == b"" or any(gap.startswith(f"{part} ") for gap in run.gaps)
    write([run], tmp_path / "report")
    assert (tmp_path / "report" / "report.md").exists()


def test_a_run_without_epochs_has_no_stage_and_no_curves(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.csv").unlink()
    (folder / "model" / "card.json").unlink()
    write([read_run(folder)], tmp_path / "report")
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.md"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "No stage is done." in text
    assert "no metrics.csv: no epoch is done" in text


def test_any_other_folder_is_an_error_that_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "words.txt").touch()
    (tmp_path / "file").touch()
    for name, said in (
        ("none", "no such folder; a run is a folder"),
        ("file", "is not a folder; a run is a folder"),
        ("", "is not a run folder: none of origin.json, versions.json, metrics.csv; a run folder is the --out of"),
        ("model", "is a model folder: none of origin.json, versions.json, metrics.csv; a run folder is the --out of"),
    ):
        with pytest.raises(NotARun) as error:
            read_run(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: {said}")


def test_stages_start_at_the_same_place_for_all_runs(tmp_path: Path) -> None:
    short, long = make_run(tmp_path / "short"), make_run(tmp_path / "long", seed=1)
    with (long / "metrics.csv").open() as log:
        lines = log.read().splitlines()
    lines.insert(3, "supervision,3,1.5,,70.0,6.0,10.0")
    (long / "metrics.csv").write_text("\n".join(lines) + "\n")
    figure = chart([read_run(short), read_run(long)])
    assert figure is not None
    titles = {text.get_text() for text in figure.texts}
    assert titles >= {"Loss", "Reward", "Validation CIDEr", "Validation picks"}
    for axes in figure.axes:
        names = [text.get_text() for text in axes.texts]
        assert names.count("short") == names.count("long") == 1
    # Rewards belong to reinforcement alone: both runs start right of the longer supervision's three epochs.
    reward = figure.axes[1]
    curves = [line.get_xdata().tolist() for line in reward.lines if line.get_xdata()[0] != line.get_xdata()[-1]]
    assert curves == [[4, 5], [4, 5]]


def test_the_report_shows_its_curves(tmp_path: Path) -> None:
    write([read_run(make_run(tmp_path / "run"))], tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["curves.png", "curves.svg", "report.md"]
    assert "![Training curves](curves.png)" in (tmp_path / "report" / "report.md").read_text()
