"""Scores of systems from each choice of frames: means over seeds, folds put together, differences on the same clips."""

import pytest

from picknet import metrics
from picknet.metrics import score
from picknet.study import field

REFERENCES = {
    "one": ("a man is cooking", "a man cooks food"),
    "two": ("a dog is running", "the dog runs"),
    "three": ("a woman is singing a song", "a woman sings"),
}


@pytest.fixture(autouse=True)
def _without_meteor(monkeypatch):
    """Its word lists take seconds to read."""
    monkeypatch.setattr(metrics, "meteor", lambda *_: None)


GOOD = {name: several[0] for name, several in REFERENCES.items()}
POOR = {"one": "a man is running", "two": "a dog is running", "three": "a cat"}


def described(captions, *, system="ta", frames="own", seed=0, run="ta"):
    return {
        "system": system, "run": run, "seed": seed, "epochs": 20 + seed, "frames": frames, "mean_frames": 30.0,
        "num_parameters": 1_500_000, "trained_on": "all frames", "captions": captions,
    }  # fmt: skip


def test_seeds_are_averaged_and_folds_put_together():
    folds = [described({name: GOOD[name]}, run=f"ta-{name}") for name in GOOD]
    (row,) = field.measure([*folds, described(POOR, seed=1)], REFERENCES)
    expected = [score(captions, REFERENCES) for captions in (GOOD, POOR)]
    assert row.scores.cider == pytest.approx(sum(one.cider for one in expected) / 2)
    assert row.scores.bleu4 == pytest.approx(sum(one.bleu4 for one in expected) / 2)
    assert (row.num_seeds, row.num_clips, row.epochs) == (2, 3, 20)
    assert row.intervals["cider"].low <= row.scores.cider <= row.intervals["cider"].high
    assert row.cider.mean() == pytest.approx(row.scores.cider)


def test_runs_that_cannot_be_told_apart_are_refused():
    runs = [described(GOOD, run="runs/fast"), described({"three": POOR["three"]}, run="runs/slow")]
    with pytest.raises(field.MixedRuns) as error:
        field.measure(runs, REFERENCES)
    assert str(error.value) == (
        "runs/fast and runs/slow: cannot be told apart in a table, since both are of TA with seed 0 and describe "
        "three; name one of them"
    )


def test_seeds_of_different_clips_are_refused():
    folds = [described({name: GOOD[name]}, run=f"runs/{name}") for name in ("one", "two")]
    with pytest.raises(field.MixedRuns) as error:
        field.measure([*folds, described({"one": POOR["one"]}, seed=1, run="runs/other")], REFERENCES)
    assert str(error.value) == (
        "TA: seeds 0 and 1 describe different clips (runs/one, runs/two: 2; runs/other: 1), and seeds are averaged; "
        "name runs of the same clips and folds"
    )


def test_systems_of_different_clips_have_no_difference(tmp_path):
    everything = [
        described({name: GOOD[name]}, system=system, frames=frames)
        for system, name in (("mean", "one"), ("ta", "two"))
        for frames in field.FRAMES
    ]
    rows = field.measure(everything, REFERENCES)
    assert rows[0].num_clips == rows[-1].num_clips == 1
    last = field.tables(rows, "msvd").splitlines()[-1]
    assert last.split("|")[1].strip() == "TA"
    assert last.rstrip(" |").endswith("–")
    facts = {"command": "picknet bench", "commit": "abc1234", "device": "cpu", "dataset": "msvd"}
    field.write(everything, REFERENCES, tmp_path, facts=facts)
    assert "cpu, 1 clips, not the same for all systems." in (tmp_path / "field.md").read_text()


def test_differences_are_of_the_same_clips():
    good, poor = field.measure([described(GOOD, system="mean"), described(POOR)], REFERENCES)
    value, ends = field.difference(poor, good)
    assert value == pytest.approx(poor.scores.cider - good.scores.cider)
    assert ends.low <= value <= ends.high <= 0  # none of the poor captions is better, one is the same


def test_the_tables_name_systems_in_the_papers_order_with_what_they_print():
    rows = field.measure(
        [
            described(POOR if frames == "picknet" else GOOD, system=system, frames=frames)
            for system in ("ta", "mean")
            for frames in field.FRAMES
        ],
        REFERENCES,
    )
    scores, differences = field.tables(rows, "msvd").split("\n\n")
    lines = scores.splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["mean pooling"] * 4 + ["TA"] * 4
    assert "41.9, –, 29.6, 51.7" in lines[4]
    assert "1.5 M" in lines[0]
    assert "its own − mean pooling" in differences
    assert differences.splitlines()[2].rstrip(" |").endswith("–")
    assert "+0.0 (+0.0 … +0.0)" in differences.splitlines()[3]
