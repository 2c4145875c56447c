"""A report of training runs from their run folders: gain of each stage, training curves, settings, cost.

Incomplete folders are read as far as possible (runs of an older picknet, unfinished runs, partial copies); the report
lists what is missing.
"""

import csv
import json
import math
import os
import shlex
import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from picknet.config import flat
from picknet.errors import PicknetError
from picknet.files import write_text
from picknet.study.charts import COLOURS, GREEN, Line, Panel, line_chart, require_matplotlib, save
from picknet.study.evaluation import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("config.toml", "origin.json", "versions.json", "clips.json", "metrics.csv", "model/card.json")
RUN_PARTS = ("origin.json", "versions.json", "metrics.csv")
"""Files that a run folder has and a model folder has not."""
CURVES = {
    "loss": ("Loss", "per word, mean over an epoch", 0.0),
    "reward": ("Reward", "mean over the sampled picks of an epoch", 0.05),
    "val_cider": ("Validation CIDEr", "of greedy captions", 5.0),
    "val_picks": ("Validation picks", "mean per clip", 1.0),
}
"""Column of metrics.csv: title, note, and padding of the y axis."""


class NotARun(PicknetError):
    """A folder that was not written by a training."""


@dataclass(frozen=True)
class StageResult:
    """The best epoch of a stage, as recorded by the run; 0 is the state the stage started from."""

    stage: str
    best_epoch: int
    val_cider: float
    val_picks: float


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder."""

    name: str
    settings: Mapping[str, Any]
    """From config.toml, by dotted names, without the seed."""
    seed: int | None
    origin: Mapping[str, Any]
    versions: Mapping[str, Any]
    clips: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    """The rows of metrics.csv: stage, epoch, and numbers; None for an empty cell."""
    results: Sequence[StageResult]
    gaps: Sequence[str]
    """What is missing in the folder."""


def read_run(folder: str | os.PathLike[str]) -> RunRecord:
    """Read a run folder as far as possible; raises `NotARun` for any other folder."""
    path = Path(folder)
    if not path.is_dir():
        raise NotARun(f"{path}: {'is not a folder' if path.exists() else 'no such folder'}; a run is a folder")
    if not any((path / part).is_file() for part in RUN_PARTS):
        kind = "a model folder" if (path / "words.txt").is_file() else "not a run folder"
        raise NotARun(f"{path}: is {kind}: none of {', '.join(RUN_PARTS)}; a run folder is the --out of picknet train")
    gaps: list[str] = []
    settings = flat(_read(path / "config.toml", tomllib.loads, gaps))
    seed = settings.pop("seed", None)
    epochs = _epochs(path / "metrics.csv", gaps)
    if epochs and not any(row.get("seconds") is not None for row in epochs):
        gaps.append("metrics.csv has no seconds, so the cost of training is not known")
    card = _read(path / "model" / "card.json", json.loads, gaps)
    return RunRecord(
        name=str(folder),
        settings=settings,
        seed=seed if isinstance(seed, int) else None,
        origin=_read(path / "origin.json", json.loads, gaps),
        versions=_read(path / "versions.json", json.loads, gaps),
        clips=_read(path / "clips.json", json.loads, gaps),
        epochs=epochs,
        results=_results(card, epochs, gaps),
        gaps=gaps,
    )


def read_runs(folders: Sequence[str | os.PathLike[str]]) -> list[RunRecord]:
    """Read run folders, each once: one that is named again is not another run."""
    places: dict[Path, str | os.PathLike[str]] = {}
    for folder in folders:
        places.setdefault(Path(folder).resolve(), folder)
    return [read_run(folder) for folder in places.values()]


def write(runs: Sequence[RunRecord], folder: Path) -> None:
    """report.md, and the training curves as curves.png and curves.svg. Needs matplotlib."""
    require_matplotlib()
    curves = chart(runs)
    if curves:
        save(curves, folder / "curves.png")
        save(curves, folder / "curves.svg")
    write_text(folder / "report.md", markdown(runs, curves="curves.png" if curves else None))


# --- Reading ---


def _read(path: Path, parse: Callable[[str], Any], gaps: list[str]) -> dict[str, Any]:
    """The table in a file; if it cannot be read, an empty one and a gap."""
    name = f"{path.parent.name}/{path.name}" if path.name == "card.json" else path.name
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        gaps.append(f"no {name}")
        return {}
    except (OSError, ValueError) as error:
        gaps.append(f"{name} cannot be read ({error})")
        return {}
    if not isinstance(content, dict):
        gaps.append(f"{name} is not a table")
        return {}
    return content


def _epochs(path: Path, gaps: list[str]) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        gaps.append("no metrics.csv: no epoch is done")
        return []
    except (OSError, UnicodeDecodeError) as error:
        gaps.append(f"metrics.csv cannot be read ({error})")
        return []
    epochs = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            numbers = {key: float(value) if value else None for key, value in row.items() if key != "stage"}
            # The last row may be incomplete if the run was killed.
            if None in row or None in row.values() or not row["stage"]:
                raise ValueError
            epochs.append({**numbers, "stage": row["stage"], "epoch": int(row["epoch"])})
        except (ValueError, TypeError, KeyError):
            gaps.append(f"line {number} of metrics.csv is incomplete or not a row of numbers; it is left out")
    return epochs


def _results(card: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]], gaps: list[str]) -> list[StageResult]:
    """The best epochs from the model's card; for a stage it does not have, the epoch with the highest CIDEr."""
    recorded = card.get("stages")
    results = []
    for stage in dict.fromkeys([*(row["stage"] for row in epochs), *(recorded if isinstance(recorded, dict) else ())]):
        try:
            best = card["stages"][stage]
            results.append(StageResult(stage, int(best["epoch"]), float(best["val_cider"]), float(best["val_picks"])))
            continue
        except (KeyError, TypeError, ValueError):
            gaps.append(f"no {stage} in model/card.json: its best epoch is that of the highest CIDEr in metrics.csv")
        rows = [row for row in epochs if row["stage"] == stage and row.get("val_cider") is not None]
        if rows:
            row = max(rows, key=lambda row: (row["val_cider"], row["epoch"]))
            picks = math.nan if row.get("val_picks") is None else row["val_picks"]
            results.append(StageResult(stage, row["epoch"], row["val_cider"], picks))
    return results


# --- Writing ---


def groups(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs that differ in the seed alone, grouped; a run with unknown settings is a group by itself."""
    found: list[list[RunRecord]] = []
    for run in runs:
        group = next((group for group in found if run.settings and _all_but_seed(group[0]) == _all_but_seed(run)), None)
        if group is None:
            found.append([run])
        else:
            group.append(run)
    return found


def _all_but_seed(run: RunRecord) -> tuple[Any, ...]:
    return run.settings, run.origin, _names(run, "train"), _names(run, "val")


def _names(run: RunRecord, split: str) -> Any:
    """The names of the clips of a split; None if they are not known."""
    parts = run.clips.get(split)
    return parts.get("used") if isinstance(parts, dict) else None


def markdown(runs: Sequence[RunRecord], *, curves: str | None) -> str:
    grouped = groups(runs)
    parts = ["# Training runs"]
    if curves:
        parts.append(f"![Training curves]({curves})")
    parts.append(
        "The gain of each stage, in validation CIDEr of its best epoch: mean ± standard deviation over the runs that "
        "differ in the seed alone."
    )
    for number, group in enumerate(grouped, start=1):
        parts += [f"## {_title(number, group)}", _stage_table(group), _run_table(group), _commands(group)]
    if len(grouped) > 1:
        parts += ["## Settings that differ", _differing(grouped)]
    gaps = [f"- {run.name}: {gap}" for run in runs for gap in run.gaps]
    if gaps:
        parts += ["## What is missing", "\n".join(gaps)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(number: int, group: Sequence[RunRecord]) -> str:
    seeds = [str(run.seed) for run in group if run.seed is not None]
    named = f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if seeds else ""
    return f"{number}. {len(group)} run{'s' * (len(group) > 1)}{named}"


def _stage_table(group: Sequence[RunRecord]) -> str:
    stages = list(dict.fromkeys(result.stage for run in group for result in run.results))
    if not stages:
        return "No stage is done."
    cells = [["stage", "runs", "best epoch", "CIDEr", "added", "picks", "epochs", "seconds"]]
    for stage in stages:
        results = {run.name: result for run in group for result in run.results if result.stage == stage}
        added = []
        for run in group:
            place = next((n for n, result in enumerate(run.results) if result.stage == stage), 0)
            if place:
                added.append(run.results[place].val_cider - run.results[place - 1].val_cider)
        epochs = [len(_of(run, stage)) for run in group if _of(run, stage)]
        cells.append(
            [
                stage,
                str(len(results)),
                _spread([result.best_epoch for result in results.values()], digits=0),
                _spread([result.val_cider for result in results.values()]),
                _spread(added, sign="+"),
                _spread([result.val_picks for result in results.values()]),
                _spread(epochs, digits=0),
                _spread([seconds for run in group if (seconds := _seconds(_of(run, stage))) is not None], digits=0),
            ]
        )
    return markdown_table(cells)


def _run_table(group: Sequence[RunRecord]) -> str:
    versions = list(dict.fromkeys(name for run in group for name in run.versions))
    cells = [["run", "seed", "train clips", "val clips", "epochs", "seconds", *versions]]
    for run in group:
        seconds = _seconds(run.epochs)
        cells.append(
            [
                run.name,
                "–" if run.seed is None else str(run.seed),
                _clips(run, "train"),
                _clips(run, "val"),
                str(len(run.epochs)),
                "–" if seconds is None else f"{seconds:,.0f}",
                *(str(run.versions.get(name, "–")) for name in versions),
            ]
        )
    return markdown_table(cells)


def _clips(run: RunRecord, split: str) -> str:
    parts = run.clips.get(split)
    if not isinstance(parts, dict):
        return "–"
    used, missing = (len(parts.get(key) or ()) for key in ("used", "missing"))
    return f"{used:,}" + (f" ({missing:,} missing)" if missing else "")


def _commands(group: Sequence[RunRecord]) -> str:
    """The command of each run: as recorded, or one that repeats its settings."""
    lines = [run.versions.get("command") or _command(run) for run in group]
    return "```console\n" + "\n".join(f"$ {line}" for line in lines if line) + "\n```" if any(lines) else ""


def _command(run: RunRecord) -> str:
    if not run.settings:
        return ""
    words = ["picknet", "train", f"{run.name}/config.toml"]
    # Several data sets are recorded as one+another.
    for dataset in str(run.origin.get("dataset", "msvd")).split("+"):
        words += ["--data", f"{dataset}=DATA"]
    if isinstance(start := run.origin.get("from"), str):
        words += ["--from", start]
        for stage in dict.fromkeys(row["stage"] for row in run.epochs):
            words += ["--stage", stage]
    return shlex.join([*words, "--out", f"{run.name}-again"])


def _differing(grouped: Sequence[Sequence[RunRecord]]) -> str:
    known = [(number, group[0]) for number, group in enumerate(grouped, start=1) if group[0].settings]
    tables = [{**run.settings, **{f"origin: {key}": value for key, value in run.origin.items()}} for _, run in known]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differing = [name for name in names if any(table.get(name) != tables[0].get(name) for table in tables)]
    splits = [
        split for split in ("train", "val") if any(_names(run, split) != _names(known[0][1], split) for _, run in known)
    ]
    if not (differing or splits):
        return "None known."
    cells = [["setting", *(str(number) for number, _ in known)]]
    for name in differing:
        cells.append([name, *(json.dumps(table[name]) if name in table else "–" for table in tables)])
    for split in splits:
        cells.append([f"{split} clips, by their names", *(_clips(run, split) for _, run in known)])
    return markdown_table(cells)


def _of(run: RunRecord, stage: str) -> list[Mapping[str, Any]]:
    return [row for row in run.epochs if row["stage"] == stage]


def _seconds(epochs: Sequence[Mapping[str, Any]]) -> float | None:
    """The total time of epochs; None if it is unknown for one of them."""
    seconds = [row.get("seconds") for row in epochs]
    known = [value for value in seconds if value is not None]
    return sum(known) if known and len(known) == len(seconds) else None


def _spread(values: Sequence[float], *, digits: int = 1, sign: str = "") -> str:
    """mean ± standard deviation, or the one value."""
    if not values or any(math.isnan(value) for value in values):
        return "–"
    mean = f"{statistics.mean(values):{sign},.{digits}f}".replace("-", "−")
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}"


# --- Drawing ---


def chart(runs: Sequence[RunRecord]) -> "Figure | None":
    """Loss, reward, validation CIDEr and picks by epoch. A stage starts at the same place for all runs."""
    lengths: dict[str, int] = {}
    for run in runs:
        for row in run.epochs:
            lengths[row["stage"]] = max(lengths.get(row["stage"], 0), row["epoch"])
    starts: dict[str, int] = {}
    for stage in lengths:
        starts[stage] = sum(lengths[before] for before in starts)
    stretches = [(stage, starts[stage], starts[stage] + lengths[stage]) for stage in lengths]
    colours = [GREEN, *COLOURS]
    short = [Path(run.name).name for run in runs]
    names = short if len(set(short)) == len(short) else [run.name for run in runs]
    panels = []
    for key, (title, note, padding) in CURVES.items():
        lines = []
        for number, (name, run) in enumerate(zip(names, runs, strict=True)):
            pieces = [
                [(starts[stage] + row["epoch"], row[key]) for row in _of(run, stage) if row.get(key) is not None]
                for stage in lengths
            ]
            if any(pieces):
                colour = colours[number % len(colours)]
                lines.append(Line(name, [piece for piece in pieces if piece], colour, 1.8, dots=False))
        if lines:
            panels.append(Panel(title, note, "epoch", lines, stretches=stretches, padding=padding, height=1.9))
    return line_chart(panels) if panels else None
