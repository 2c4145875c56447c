"""Pickers with a budget of frames, compared on short clips and on films in which little happens.

    python benchmarks/budgets.py --data MSVD --work FOLDER --out FOLDER [--seed 0]

Short clips: 99 validation clips, 30 evenly spaced frames each, of which 2 to 12 are picked. Measured are the CIDEr of
the caption, and coverage: the mean distance of the CNN feature of every sampled frame to the nearest pick (less is
better).

Films: 20 films by films.py (`--films 0` skips them), sampled at 1 frame a second, budgets of 5, 10 and 15. An event is
found if one of its frames is picked; its caption is made from its picks, and an event that is not found scores 0.

  budget     `BudgetPicker`: one pass, without knowing the length
  uniform    the centres of N equal parts
  random     N random frames, mean of several draws
  k-means    the frames nearest to the N centres of the CNN features of all frames
  policy     the learned picker at a stride of an N-th of the frames; of more than N picks the most probable
  content, adaptive, threshold, histogram
             PySceneDetect's detectors on every frame, at their default settings: the first frames of scenes, the
             strongest cuts first if there are more than N. Most short clips have no cut: there, `content` takes the N
             sampled frames of the highest score.

Writes budgets.json, budgets.md and budgets.png. Needs the `bench` extra.
"""

import argparse
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from films import KINDS, NUM_FILMS, Film, make_films, sampled
from numpy.typing import NDArray
from scenedetect import (
    AdaptiveDetector,
    ContentDetector,
    FrameTimecode,
    HistogramDetector,
    SceneDetector,
    SceneManager,
    StatsManager,
    ThresholdDetector,
    open_video,
)

from picknet.captioner import Captioner, load
from picknet.data.split import load_split
from picknet.files import write_text, written_whole
from picknet.metrics import Cider
from picknet.picking.budget import BudgetPicker
from picknet.picking.learned import learned_picker
from picknet.picking.picker import Picker
from picknet.picking.plain import KMeansPicker, RandomPicker, UniformPicker
from picknet.study.charts import GREEN, GREY, Line, Panel, line_chart, save
from picknet.study.judging import Choice, ClipFeatures, described
from picknet.text import tokenise
from picknet.video.frame import Frame

Array = NDArray[Any]
BUDGETS = range(2, 13)
FILM_BUDGETS = (5, 10, 15)
NUM_DRAWS = 3
NUM_SAMPLES = 10_000
"""Bootstrap samples."""
DETECTORS: dict[str, Callable[[], SceneDetector]] = {
    "content": ContentDetector,
    "adaptive": AdaptiveDetector,
    "threshold": ThresholdDetector,
    "histogram": HistogramDetector,
}


class Chooser:
    """The pickers that choose among given frames."""

    def __init__(self, captioner: Captioner, feature: Callable[[Frame], Array], *, seed: int) -> None:
        self._captioner = captioner
        self._feature = feature
        self._chance = np.random.default_rng(seed)

    def choices(self, frames: Sequence[Frame], budget: int) -> dict[str, list[Choice]]:
        """Choices by picker; several where the picker is random."""
        policy = self._captioner.runtime.policy
        stride = max(len(frames) / budget, 1.0)
        pickers: dict[str, list[Picker]] = {
            "budget": [BudgetPicker(budget)],
            "uniform": [UniformPicker(budget)],
            "random": [RandomPicker(budget, seed=self._chance) for _ in range(NUM_DRAWS)],
            "k-means": [KMeansPicker(budget, features=self._feature, seed=self._chance)],
        }
        found = {
            name: [tuple(pick.index for _, pick in picker.pick(frames)) for picker in several]
            for name, several in pickers.items()
        }
        learned = learned_picker(policy, replace(self._captioner.config.model, stride=stride))
        picks = [pick for _, pick in learned.pick(frames)]
        surest = sorted(picks, key=lambda pick: -np.inf if pick.probability is None else -pick.probability)
        found["policy"] = [tuple(sorted(pick.index for pick in surest[:budget]))]
        return found


@dataclass
class Tally:
    """Scores of a picker at one budget, choice by choice."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: float(np.mean(several)) for name, several in self.values.items()}


Table = dict[str, dict[int, Tally]]


# --- Short clips ---


def short_clips(captioner: Captioner, data: Path, work: Path, *, beam: int, seed: int) -> Table:
    split = load_split(data, dataset="msvd", split="val")
    cider = _cider(split.clips)
    features = ClipFeatures(captioner, work / "features")
    features.cache.mkdir(parents=True, exist_ok=True)  # type: ignore[union-attr]
    chooser = Chooser(captioner, features.of_frame, seed=seed)
    table: Table = {}
    for clip in split.clips:
        frames = features.read(clip)
        contents = content_scores(clip.path, [frame.seconds for frame in frames])
        found = {budget: chooser.choices(frames, budget) for budget in BUDGETS}
        for budget, choices in found.items():
            choices["content"] = [tuple(sorted(np.argsort(-contents, kind="stable")[:budget].tolist()))]
        wanted = {choice for choices in found.values() for several in choices.values() for choice in several}
        captions = described(captioner, features.features, wanted, beam=beam)
        means = features.features.mean(axis=1)
        for budget, choices in found.items():
            for name, several in choices.items():
                tally = table.setdefault(name, {}).setdefault(budget, Tally())
                for choice in several:
                    score = 100 * cider.scores([clip.name], [tokenise(captions[choice])])[0]
                    tally.add(cider=score, coverage=coverage(means, choice), picks=len(choice))
    return table


def coverage(features: Array, choice: Choice) -> float:
    """features: (frames, feature) -> mean distance of a frame to the nearest pick"""
    away = np.linalg.norm(features[:, None] - features[None, list(choice)], axis=2)
    return float(away.min(axis=1).mean())


def content_scores(path: Path, seconds: Sequence[float]) -> Array:
    """The content detector's highest score since the previous sample; infinite for the first frame."""
    stats = StatsManager()
    manager = SceneManager(stats)
    manager.add_detector(ContentDetector())
    video = open_video(str(path), backend="pyav")  # OpenCV does not decode AV1 everywhere
    manager.detect_scenes(video)
    places = [round(at * video.frame_rate) for at in seconds]
    scores = [stats.get_metrics(number, ["content_val"])[0] or 0.0 for number in range(places[-1] + 1)]
    later = [max(scores[before + 1 : at + 1], default=0.0) for before, at in itertools.pairwise(places)]
    return np.array([np.inf, *later])


# --- Films ---


def films(captioner: Captioner, data: Path, work: Path, *, beam: int, seed: int, num_films: int) -> Table:
    cider = _cider(load_split(data, dataset="msvd", split="val").clips)
    table: Table = {}
    for film in make_films(data, work / "films", seed=seed, num_films=num_films):
        frames = list(sampled(film))
        times = np.array([frame.seconds for frame in frames])
        means = _means(captioner, film, frames, work / "features")

        def feature(frame: Frame, means: Array = means) -> Array:
            return np.asarray(means[frame.index])

        chooser = Chooser(captioner, feature, seed=seed)
        found = {budget: chooser.choices(frames, budget) for budget in FILM_BUDGETS}
        for name, starts in scene_starts(film).items():
            # A scene is represented by the first sample at or after its start.
            places = [int(min(np.searchsorted(times, at - 1e-3), len(times) - 1)) for at in starts]
            for budget, choices in found.items():
                choices[name] = [tuple(sorted(dict.fromkeys(places[:budget])))]
        of_events = {
            (budget, name): [
                tuple(choice[place] for place in part)
                for choice in several
                for part in film.found(times[list(choice)].tolist())
            ]
            for budget, choices in found.items()
            for name, several in choices.items()
        }
        wanted = {picked for parts in of_events.values() for picked in parts if picked}
        cells = {place: captioner.features(frames[place])[0] for place in {place for one in wanted for place in one}}
        captions = described(captioner, cells, wanted, beam=beam)
        for (budget, name), parts in of_events.items():
            tally = table.setdefault(name, {}).setdefault(budget, Tally())
            for event, picked in zip(itertools.cycle(film.events), parts):  # draw by draw
                score = 0.0
                if picked:
                    score = 100 * float(cider.scores([event.clip], [tokenise(captions[picked])])[0])
                tally.add(**{"found": float(bool(picked)), "cider": score, film.kind: float(bool(picked))})
    return table


def scene_starts(film: Film) -> dict[str, list[float]]:
    """Scene starts by detector: the first frame, then cuts by falling strength. Cached beside the film.

    The strength of a cut is the mean difference of hue, saturation and value, the content detector's score.
    """
    path = film.path.with_name(f"{film.path.stem}-scenes.json")
    if not path.exists():
        detectors = {name: make() for name, make in DETECTORS.items()}
        cuts: dict[str, list[FrameTimecode]] = {name: [] for name in detectors}
        strengths: list[float] = []
        video, before = open_video(str(film.path)), None
        while (picture := video.read()) is not False:
            at = video.position
            for name, detector in detectors.items():
                cuts[name] += detector.process_frame(at, picture)
            colours = cv2.cvtColor(picture, cv2.COLOR_BGR2HSV)
            strengths.append(0.0 if before is None else float(cv2.absdiff(colours, before).mean()))
            before = colours
        for name, detector in detectors.items():
            cuts[name] += detector.post_process(video.position)
        found = {
            name: [0.0, *(cut.seconds for cut in sorted(some, key=lambda cut: -strengths[cut.frame_num]))]
            for name, some in cuts.items()
        }
        write_text(path, json.dumps(found))
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _means(captioner: Captioner, film: Film, frames: Sequence[Frame], cache: Path) -> Array:
    """The CNN feature of every frame, for k-means: (frames, feature). Cached.

    A feature is computed again when the glance differs by more than a grey value from that of the last computed frame.
    """
    weights = (captioner.runtime.folder / "weights.safetensors").read_bytes()
    path = cache / f"{film.path.stem}-{hashlib.sha256(weights).hexdigest()[:16]}.npy"
    if not path.exists():
        means: list[Array] = []
        last = np.full_like(frames[0].glance(), 255, dtype=np.float32)
        for frame in frames:
            if not means or np.abs(frame.glance() - last).mean() > 1:
                last = frame.glance().astype(np.float32)
                means.append(captioner.feature(frame))
            else:
                means.append(means[-1])
        cache.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.stack(means))
    return np.asarray(np.load(path, allow_pickle=False))


def _cider(clips: Sequence[Any]) -> Cider:
    return Cider({clip.name: [tokenise(text) for text in clip.captions] for clip in clips})


# --- Tables and the picture ---


def differences(table: Table, *, seed: int) -> dict[str, list[float]]:
    """CIDEr of budget minus uniform on short clips, by budget and over all: the mean and the ends of its 95 % interval
    (paired bootstrap over clips)."""
    of = {n: np.subtract(*(table[who][n].values["cider"] for who in ("budget", "uniform"))) for n in BUDGETS}
    rows = {**{str(n): values for n, values in of.items()}, "all": np.mean([*of.values()], axis=0)}
    num_clips = len(rows["all"])
    drawn = np.random.default_rng(seed).integers(num_clips, size=(NUM_SAMPLES, num_clips))
    return {
        name: [float(values.mean()), *np.percentile(values[drawn].mean(axis=1), (2.5, 97.5)).tolist()]
        for name, values in rows.items()
    }


def markdown(short: dict[str, Any], long: dict[str, Any], against: dict[str, list[float]]) -> str:
    lines = []
    for title, key, digits in (("CIDEr", "cider", 1), ("Coverage, less is better", "coverage", 2)):
        lines += [f"{title}:", "", "| N | " + " | ".join(map(str, BUDGETS)) + " |", "|---" * (len(BUDGETS) + 1) + "|"]
        for name, row in short.items():
            cells = " | ".join(f"{row[str(budget)][key]:.{digits}f}" for budget in BUDGETS)
            lines.append(f"| {name} | {cells} |")
        lines.append("")
    listed = [f"{n} {mean:+.1f} ({low:+.1f} … {high:+.1f})" for n, (mean, low, high) in against.items()]
    lines += ["CIDEr of budget minus uniform, with its 95 % interval, by N: " + ", ".join(listed), ""]
    heads = [f"{what}, N = {budget}" for what in ("found", "CIDEr") for budget in FILM_BUDGETS]
    lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name, row in long.items():
        found = [f"{100 * row[str(budget)]['found']:.0f} %" for budget in FILM_BUDGETS]
        ciders = [f"{row[str(budget)]['cider']:.1f}" for budget in FILM_BUDGETS]
        lines.append(f"| {name} | " + " | ".join(found + ciders) + " |")
    lines += ["", "Found at N = 10, by the kind of film:", "", "| | " + " | ".join(KINDS) + " |", "|---" * 4 + "|"]
    for name, row in long.items():
        lines.append(f"| {name} | " + " | ".join(f"{100 * row['10'][kind]:.0f} %" for kind in KINDS) + " |")
    return "\n".join(lines) + "\n"


def draw(short: dict[str, Any], against: dict[str, list[float]], path: Path) -> None:
    means = [[(float(n), against[str(n)][0]) for n in BUDGETS]]
    band = [(float(n), *against[str(n)][1:]) for n in BUDGETS]
    difference = Line("budget", means, GREEN, 2.6, band=band)
    names = sorted(short, key=lambda name: name != "budget")
    coverages = [
        Line(
            name,
            [[(budget, short[name][str(budget)]["coverage"]) for budget in BUDGETS]],
            *((GREEN, 2.6) if name == "budget" else (GREY,)),
        )
        for name in names
    ]
    panels = [
        Panel(
            "CIDEr of budget minus uniform",
            "99 validation clips, with 95 % intervals",
            "frames",
            [difference],
            levels=[("uniform", 0.0)],
            padding=5.0,
            symmetric=True,
        ),
        Panel(
            "Distance of a frame to the nearest pick",
            "CNN features; less is better",
            "frames",
            coverages,
            from_zero=True,
        ),
    ]
    save(line_chart(panels), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MSVD's videos and captions")
    parser.add_argument("--work", type=Path, required=True, help="films and features, outside of the repository")
    parser.add_argument("--out", type=Path, required=True, help="folder for budgets.json, .md and .png")
    parser.add_argument("--model", help="a model folder; the default model otherwise")
    parser.add_argument("--films", type=int, default=NUM_FILMS)
    parser.add_argument("--beam", type=int, default=1, help="beam width; greedy by default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    captioner = load(arguments.model)

    def plain(table: Table) -> dict[str, Any]:
        return {
            name: {str(budget): tally.means() for budget, tally in row.items()} for name, row in sorted(table.items())
        }

    given = {"beam": arguments.beam, "seed": arguments.seed}
    long = plain(films(captioner, arguments.data, arguments.work, num_films=arguments.films, **given))
    table = short_clips(captioner, arguments.data, arguments.work, **given)
    short, against = plain(table), differences(table, seed=arguments.seed)
    result = {**given, "model": captioner.name, "films": long, "short_clips": short, "budget_minus_uniform": against}
    text = markdown(short, long, against)
    write_text(arguments.out / "budgets.json", json.dumps(result, indent=2) + "\n")
    write_text(arguments.out / "budgets.md", text)
    draw(short, against, arguments.out / "budgets.png")
    print(text)


if __name__ == "__main__":
    main()
