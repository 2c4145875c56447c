"""The field on one bench: scores of captioning systems from their own frames and from others' picks, as tables."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet import metrics
from picknet.errors import PicknetError
from picknet.files import write_text
from picknet.metrics import METRICS, Scores
from picknet.study.bootstrap import Interval, interval, resamples
from picknet.study.charts import COLOURS, GREEN, GREY, Dots, MissingMatplotlib, dot_chart, save
from picknet.study.evaluation import markdown_table, score_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "picknet": "PickNet's captioner",
    "mean": "mean pooling",
    "ta": "TA",
    "s2vt": "S2VT",
    "lstm-e": "LSTM-E",
    "p-rnn": "p-RNN",
    "hrne": "HRNE",
    "ba": "BA",
    "ruc-uva": "ruc-uva",
    "aalto": "Aalto",
    "densecap": "DenseCap",
    "ms-rnn": "MS-RNN",
}
"""Of systems, in the order of the tables."""

FRAMES = {"own": "its own", "uniform": "uniform", "picknet": "PickNet's", "all": "all"}


class Printed(NamedTuple):
    bleu4: float | None
    rouge_l: float | None
    meteor: float | None
    cider: float | None


ORIGINALS = {
    "msvd": {
        "ta": Printed(41.9, None, 29.6, 51.7),
        "s2vt": Printed(None, None, 29.8, None),
        "lstm-e": Printed(45.3, None, 31.0, None),
        "p-rnn": Printed(49.9, None, 32.6, 65.8),
        "hrne": Printed(43.8, None, 33.1, None),
        "ba": Printed(42.5, None, 32.4, 63.5),
        "picknet": Printed(44.8, 68.5, 31.6, 69.4),
    },
    "msrvtt": {
        "ruc-uva": Printed(38.7, 58.7, 26.9, 45.9),
        "aalto": Printed(39.8, 59.8, 26.9, 45.7),
        "densecap": Printed(41.4, 61.1, 28.3, 48.9),
        "ms-rnn": Printed(39.8, 59.3, 26.1, 40.9),
        "picknet": Printed(36.8, 59.0, 26.7, 41.2),
    },
}
"""What the paper's tables say of each system: BLEU-4, ROUGE-L, METEOR, CIDEr on the test splits, with features of their
own. PickNet's captioner is the paper's baseline, which reads all frames."""


class MixedRuns(PicknetError):
    """Runs that cannot be rows of one table: they cannot be told apart, or their clips differ."""


@dataclass(frozen=True)
class Row:
    """A system with one choice of frames: means over its seeds."""

    system: str
    trained_on: str
    frames: str
    """A key of `FRAMES`."""
    scores: Scores
    intervals: Mapping[str, Interval]
    """95 %, by bootstrap over the clips, by the name of the metric."""
    mean_frames: float
    num_parameters: int
    epochs: int
    """The fewest of its runs."""
    num_seeds: int
    clips: tuple[str, ...]
    """Their names, sorted."""
    cider: NDArray[Any]
    """(clips,), ×100, in the order of the clips' names."""

    @property
    def num_clips(self) -> int:
        return len(self.clips)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self) | {"cider": [round(float(value), 2) for value in self.cider]}
        plain["num_clips"] = len(plain.pop("clips"))  # the captions beside the rows name them
        return plain | {"intervals": {name: list(ends) for name, ends in self.intervals.items()}}


def measure(
    described: Sequence[Mapping[str, Any]], references: Mapping[str, Sequence[str]], *, seed: int = 0
) -> list[Row]:
    """described: `picknet.training.bench.Described` as dictionaries. The runs of different folds are one row, and those
    of different seeds are averaged. references: what people say, by the clip's name. seed: of the bootstrap.

    It is an error if two runs of a system and seed describe the same clip, or if its seeds describe different clips.
    """
    rows: dict[tuple[str, str, str], dict[int, list[Mapping[str, Any]]]] = {}
    for one in described:
        seeds = rows.setdefault((one["system"], one["trained_on"], one["frames"]), {})
        seeds.setdefault(one["seed"], []).append(one)
    order = {name: number for number, name in enumerate(NAMES)}
    return [
        _row(*key, seeds, references, seed)
        for key, seeds in sorted(rows.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    ]


def _row(
    system: str,
    trained_on: str,
    frames: str,
    seeds: Mapping[int, Sequence[Mapping[str, Any]]],
    references: Mapping[str, Sequence[str]],
    seed: int,
) -> Row:
    values, spreads, ciders = [], [], []
    described = {number: _captions(folds) for number, folds in seeds.items()}
    first, names = next((number, sorted(captions)) for number, captions in described.items())
    for number, captions in described.items():
        if sorted(captions) != names:
            places = [", ".join(one["run"] for one in seeds[which]) for which in (first, number)]
            raise MixedRuns(
                f"{NAMES[system]}: seeds {first} and {number} describe different clips ({places[0]}: {len(names)}; "
                f"{places[1]}: {len(captions)}), and seeds are averaged; name runs of the same clips and folds"
            )
        measured = metrics.measure({name: captions[name] for name in names}, {name: references[name] for name in names})
        values.append(measured.resampled(np.full((1, len(names)), 1 / len(names)))[:, 0])
        spreads.append(measured.resampled(resamples(len(names), seed=seed)))
        ciders.append(100 * measured.cider)
    every = [one for folds in seeds.values() for one in folds]
    spread = np.mean(spreads, axis=0)
    means = [None if np.isnan(value) else float(value) for value in np.mean(values, axis=0)]
    return Row(
        system=system,
        trained_on=trained_on,
        frames=frames,
        scores=Scores(*means),  # type: ignore[arg-type]
        intervals={name: interval(of) for name, of in zip(METRICS, spread, strict=True) if not np.isnan(of).any()},
        mean_frames=float(np.mean([one["mean_frames"] for one in every])),
        num_parameters=every[0]["num_parameters"],
        epochs=min(one["epochs"] for one in every),
        num_seeds=len(seeds),
        clips=tuple(names),
        cider=np.mean(ciders, axis=0),
    )


def _captions(folds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The captions of a system and seed, put together from runs of different clips."""
    captions: dict[str, str] = {}
    by_clip: dict[str, str] = {}
    for one in folds:
        for clip, caption in one["captions"].items():
            if clip in captions:
                raise MixedRuns(
                    f"{by_clip[clip]} and {one['run']}: cannot be told apart in a table, since both are of "
                    f"{NAMES[one['system']]} with seed {one['seed']} and describe {clip}; name one of them"
                )
            captions[clip], by_clip[clip] = caption, one["run"]
    return captions


def difference(one: Row, other: Row, *, seed: int = 0) -> tuple[float, Interval]:
    """CIDEr of one row minus that of another on the same clips, with its 95 % interval."""
    differences = one.cider - other.cider
    return float(differences.mean()), interval(resamples(len(differences), seed=seed) @ differences)


def write(
    described: Sequence[Mapping[str, Any]],
    references: Mapping[str, Sequence[str]],
    out: Path,
    *,
    facts: Mapping[str, str],
) -> list[Row]:
    """Write field.json with all captions, field.md with the tables and, with matplotlib, field.png.

    facts: command, commit, device, dataset.
    """
    # Captions take longest: they are kept whatever happens to their scores.
    write_text(out / "field.json", json.dumps({**facts, "described": described}) + "\n")
    rows = measure(described, references)
    content = {**facts, "described": described, "rows": [row.to_dict() for row in rows]}
    write_text(out / "field.json", json.dumps(content) + "\n")
    epochs = ", ".join(f"{NAMES[row.system]} {row.epochs}" for row in rows if row.frames == "own")
    about = f"`{facts['command']}`, commit {facts['commit']}, {facts['device']}, {_clips(rows)}."
    page = [f"# The field on {facts['dataset']}", about, tables(rows, facts["dataset"]), f"Epochs: {epochs}."]
    write_text(out / "field.md", "\n\n".join(page) + "\n")
    with contextlib.suppress(MissingMatplotlib):
        save(chart(rows, facts["dataset"]), out / "field.png")
    return rows


def _clips(rows: Sequence[Row]) -> str:
    """How many clips the rows are of."""
    counts = " or ".join(str(number) for number in sorted({row.num_clips for row in rows}))
    return f"{counts} clips" + (", not the same for all systems" if len({row.clips for row in rows}) > 1 else "")


def chart(rows: Sequence[Row], dataset: str) -> "Figure":
    """CIDEr of each system from each choice of frames."""
    systems = list(dict.fromkeys((row.system, row.trained_on) for row in rows))
    by_key = {(row.system, row.trained_on, row.frames): row for row in rows}
    several = len({trained_on for _, trained_on in systems}) > 2  # all frames, and TA's own number
    few = [row.mean_frames for row in rows if row.frames == "picknet"]
    looks = {"own": (GREY, "s"), "uniform": (COLOURS[0], "o"), "picknet": (GREEN, "D")}
    names = {"own": "its own frames", "uniform": "as many evenly spaced", "picknet": "PickNet's picks"}
    dots = []
    for frames, (colour, marker) in looks.items():
        chosen = [by_key[*system, frames] for system in systems]
        values = [(row.scores.cider, *row.intervals["cider"]) for row in chosen]
        dots.append(Dots(names[frames], values, colour, marker))
    return dot_chart(
        "Does picking help other captioners?",
        f"{dataset}, {_clips(rows)}, {min(few):.1f} picks a clip; bars: 95 % by bootstrap over clips",
        "CIDEr",
        [f"{NAMES[system]}, {trained_on}" if several else NAMES[system] for system, trained_on in systems],
        dots,
    )


def tables(rows: Sequence[Row], dataset: str) -> str:
    """Scores of each system and frames; then what PickNet's picks change; in Markdown."""
    return f"{_scores_table(rows, dataset)}\n\n{_differences_table(rows)}"


def _scores_table(rows: Sequence[Row], dataset: str) -> str:
    header = ["system", "trained on", "frames", "BLEU-4", "ROUGE-L", "METEOR", "CIDEr (95 %)", "CNN passes", "weights"]
    cells = [[*header, "in print: B-4, R-L, M, C"]]
    for row in rows:
        original = ORIGINALS.get(dataset, {}).get(row.system) if row.frames == "own" else None
        printed = "" if original is None else ", ".join(score_text(value) for value in original)
        scores = row.scores
        cells.append(
            [
                NAMES[row.system],
                row.trained_on,
                FRAMES[row.frames],
                *(score_text(value) for value in (scores.bleu4, scores.rouge_l, scores.meteor)),
                score_text(scores.cider, row.intervals["cider"]),
                f"{row.mean_frames:.1f}",
                f"{row.num_parameters / 1e6:.1f} M",
                printed,
            ]
        )
    return markdown_table(cells)


def _differences_table(rows: Sequence[Row]) -> str:
    cells = [["system", "trained on", "PickNet's − its own", "PickNet's − uniform", "its own − mean pooling"]]
    by_key = {(row.system, row.trained_on, row.frames): row for row in rows}
    for (system, trained_on, frames), row in by_key.items():
        if frames != "picknet":
            continue
        own, uniform = (by_key[system, trained_on, other] for other in ("own", "uniform"))
        # TA's number of frames is its own; what was trained on few frames is compared with the like.
        plain = by_key.get(("mean", trained_on, "own")) or by_key.get(("mean", "all frames", "own"))
        above = "–"
        if plain is not None and system != "mean" and plain.clips == own.clips:
            above = _signed(*difference(own, plain))
        cells.append(
            [
                NAMES[system],
                trained_on,
                _signed(*difference(row, own)),
                _signed(*difference(row, uniform)),
                above,
            ]
        )
    return markdown_table(cells)


def _signed(value: float, ends: Interval) -> str:
    return f"{value:+.1f} ({ends.low:+.1f} … {ends.high:+.1f})".replace("-", "−")
