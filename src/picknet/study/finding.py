"""Events found against picks: PickNet and its rivals on films with known events.

Films are sampled at 1 frame a second, as `picknet stream` does by default. Pickers see glances only, so nothing goes
through the CNN; k-means, which needs the features of every frame, is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.files import write_text
from picknet.picking.budget import BudgetPicker
from picknet.picking.plain import EveryNthPicker, RandomPicker, SceneChangePicker, UniformPicker
from picknet.study import comparison, detectors
from picknet.study.bootstrap import Interval, interval, resamples
from picknet.study.charts import Panel, line_chart, save
from picknet.study.comparison_page import csv_table, styled
from picknet.study.evaluation import markdown_table
from picknet.study.films import Film, within
from picknet.study.judging import CHANGES, NUM_DRAWS, Setting, budgets, dial
from picknet.video.file import Video

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]

FPS = 1.0
KS = (5, 8, 12, 20, 30, 50, 80, 120, 200)
"""Frames that uniform and random take of a film."""
DISTANCES = (3, 5, 7, 10, 15, 25, 40, 70)
"""n of every n-th, in seconds."""
BUDGETS = (3, 4, 5, 6, 8, 10, 12, 15, 20)
STRIDE = 7
"""The stride that the picker had before it looked, in seconds."""
NAMES = {"uniform": "uniform", "stride": f"every {STRIDE} seconds"}
"""Names that differ from those on clips."""


@dataclass(frozen=True)
class FilmRow:
    """A picker at one setting, over all films. For a random picker, means over its draws."""

    picker: str
    setting: str
    own: bool
    picks: Array
    """(films,): for each event."""
    found: Array
    """(films,): the share of the events of which a frame was picked."""
    interval: Interval | None = None
    """Of the share found, by bootstrap over films."""

    @property
    def mean_picks(self) -> float:
        return float(self.picks.mean())

    @property
    def mean_found(self) -> float:
        return float(self.found.mean())


@dataclass(frozen=True)
class FilmComparison:
    rows: tuple[FilmRow, ...]
    films: tuple[Film, ...]
    model: str
    num_draws: int
    seed: int
    with_detectors: bool
    """Whether PySceneDetect is installed."""


def compare_films(
    captioner: Captioner,
    films: Sequence[Film],
    *,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
    on_film: Callable[[Film], object] = lambda film: None,
) -> FilmComparison:
    chance = np.random.default_rng(seed)
    settings = [
        *dial(captioner, spread=False),
        *(Setting("uniform", f"k={k}", (UniformPicker(k),)) for k in KS),
        *(Setting("random", f"k={k}", tuple(RandomPicker(k, seed=chance) for _ in range(num_draws))) for k in KS),
        *(Setting("every", f"n={n}", (EveryNthPicker(n),)) for n in DISTANCES),
        Setting("stride", f"n={STRIDE}", (EveryNthPicker(STRIDE),)),
        *(Setting("scene", f"change={change}", (SceneChangePicker(change),)) for change in CHANGES),
        *budgets(captioner, BUDGETS),
        *(Setting("rule", f"N={budget}", (BudgetPicker(budget),)) for budget in BUDGETS),
    ]
    own = {(setting.picker, setting.setting): setting.own for setting in settings}
    counts: dict[tuple[str, str], list[tuple[float, float]]] = {}  # picks an event and share found, film by film
    for film in films:
        with Video(film.path, glance=captioner.config.model.glance) as video:
            frames = list(video.sample_by_time(fps=FPS))
        choices = {
            (setting.picker, setting.setting): [
                [frame.seconds for frame, _ in picker.pick(frames)] for picker in setting.pickers
            ]
            for setting in settings
        }
        if detectors.is_installed():
            for key, places in detectors.detected(film.path, frames).items():
                choices[key] = [[frames[place].seconds for place in places]]
        for key, draws in choices.items():
            found = [np.mean([bool(event) for event in within(film.events, seconds)]) for seconds in draws]
            picks = np.mean([len(seconds) for seconds in draws]) / len(film.events)
            counts.setdefault(key, []).append((float(picks), float(np.mean(found))))
        on_film(film)
    weights = resamples(len(films), seed=seed)
    rows = []
    for (picker, setting), several in counts.items():
        picks, found = np.array(several).T
        ends = interval(weights @ found) if len(films) > 1 else None
        rows.append(FilmRow(picker, setting, own.get((picker, setting), False), picks, found, ends))
    return FilmComparison(tuple(rows), tuple(films), captioner.name, num_draws, seed, detectors.is_installed())


# --- The files ---


def write(compared: FilmComparison, folder: Path, *, command: str) -> None:
    """films.csv, films.md, films.png and films.svg. command: the command that made the comparison, for the page."""
    write_text(folder / "films.csv", csv_table(rows(compared)))
    figure = chart(compared)
    for suffix in ("png", "svg"):
        save(figure, folder / f"films.{suffix}")
    parts = ["# Pickers compared on films", f"```console\n$ {command}\n```", "![films](films.png)", tables(compared)]
    write_text(folder / "films.md", "\n\n".join(parts) + "\n")


def tables(compared: FilmComparison) -> str:
    """The table as Markdown."""
    cells = [["picker", "setting", "picks an event", "events found (95 %)"]]
    for row in compared.rows:
        found = f"{100 * row.mean_found:.0f} %"
        if row.interval:
            found += f" ({100 * row.interval.low:.0f} … {100 * row.interval.high:.0f})"
        name = _name(row.picker) + (" *" if row.own else "")
        cells.append([name, row.setting, f"{row.mean_picks:.2f}", found])
    missing = "" if compared.with_detectors else ' PySceneDetect is not installed: pip install "picknet[bench]".'
    return "\n\n".join(
        [
            f"{compared.model} on {_facts(compared.films)}, sampled at {FPS:g} frame a second, seed "
            f"{compared.seed}.",
            markdown_table(cells),
            f"\\* the model's own setting. Picks are all picks of a film, divided by its events. In brackets: 95 % "
            f"intervals, by bootstrap over films. Random is a mean of {compared.num_draws} draws. k-means is left out: "
            f"it needs the CNN's features of every frame.{missing}",
        ]
    )


def rows(compared: FilmComparison) -> Iterator[dict[str, Any]]:
    """A row for each picker and setting, as JSON types."""
    for row in compared.rows:
        low, high = row.interval or (None, None)
        about = {"picker": row.picker, "setting": row.setting, "own": row.own}
        yield {**about, "picks_an_event": row.mean_picks, "found": row.mean_found, "low": low, "high": high}


def chart(compared: FilmComparison) -> "Figure":
    """Events found against picks an event: PickNet in green with its 95 % interval."""
    curves: dict[str, list[FilmRow]] = {}
    for row in compared.rows:
        curves.setdefault(row.picker, []).append(row)
    lines = []
    for name, several in curves.items():
        several.sort(key=lambda row: (row.mean_picks, row.mean_found))
        own = next((row for row in several if row.own), None)
        bands = [(row.mean_picks, *row.interval) for row in several if row.interval] if name == "picknet" else []
        lines.append(
            styled(
                name,
                [(row.mean_picks, 100 * row.mean_found) for row in several],
                label=_name(name),
                band=[(x, 100 * low, 100 * high) for x, low, high in bands],
                ringed=(own.mean_picks, 100 * own.mean_found) if own else None,
            )
        )
    note = f"{_facts(compared.films)} · shaded: PickNet's 95 % interval · ring: its own setting"
    panel = Panel(
        "Events found in films, %", note, "picks for each event, also those between events", lines, height=4.0,
        from_zero=True, logarithmic=True,
    )  # fmt: skip
    return line_chart([panel])


def _name(picker: str) -> str:
    return NAMES.get(picker) or comparison.NAMES[picker]


def _facts(films: Sequence[Film]) -> str:
    seconds, num_events = sum(film.seconds for film in films), sum(len(film.events) for film in films)
    return f"{len(films)} films of {films[0].dataset} {films[0].split}, {seconds / 60:.0f} minutes, {num_events} events"
