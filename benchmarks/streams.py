"""What a stream picks and says in films with known events, what a budget finds, and what picking costs.

    python benchmarks/streams.py --films FILMS --data MSVD [--clips VIDEOS] [--model MODEL] [--out FOLDER]

Films are those of films.py. `Captioner.stream` follows each at 1 frame a second:

  picks an event     all picks of the film, also those in quiet stretches, divided by its events
  events found       events of which at least one frame was picked
  CIDEr              of what is said at the end of an event: the last update with a pick in it; 0 without one. Document
                     frequencies are those of the films' split

and by kind of quiet: picks a minute in the stretches of that kind, and how the events after them fared. `pick --budget`
gets the same films. With `--clips`, the picks among 30 frames of each video of a folder are counted that are black or
blank while a better frame is at most 3 samples away. The time of glances and policy is compared with that of
decoding the same samples of a 640×360 H.264 file. Writes streams.json and streams.md.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import footage
import numpy as np
import timing
from numpy.typing import NDArray

from picknet.captioner import Captioner, load
from picknet.data.split import load_split
from picknet.files import write_text
from picknet.metrics import Cider
from picknet.study.bootstrap import interval, resamples
from picknet.study.films import Film, Part, read_films, within
from picknet.text import tokenise
from picknet.video.file import VIDEO_SUFFIXES, Video

BUDGETS = (5, 6, 8, 10, 15)
DARK, BRIGHT, FLAT = 20, 235, 6
"""A glance is blank if its mean is below or above, or its standard deviation below these grey values."""
NEAR = 3
"""Samples within which a better frame counts."""
TIMED = {"width": 640, "height": 360, "seconds": 30.0}


@dataclass(frozen=True)
class Watched:
    """What a stream did with one event or quiet stretch."""

    film: str
    part: Part
    num_picks: int
    cider: float = 0.0
    text: str = ""


def watch(captioner: Captioner, film: Film, cider: Cider, *, beam: int | None) -> tuple[list[Watched], list[Watched]]:
    """The events and the quiet stretches of a film."""
    updates = list(captioner.stream(film.path, beam=beam))
    times = [update.pick.seconds for update in updates]
    events = []
    for event, picks in zip(film.events, within(film.events, times), strict=True):
        text, score = "", 0.0
        if picks:
            text = updates[picks[-1]].text
            score = 100 * float(cider.scores([event.clip], [tokenise(text)])[0])
        events.append(Watched(film.path.stem, event, len(picks), score, text))
    quiet = [
        Watched(film.path.stem, part, len(picks))
        for part, picks in zip(film.quiet, within(film.quiet, times), strict=True)
    ]
    return events, quiet


def summary(events: Sequence[Watched], quiet: Sequence[Watched]) -> dict[str, Any]:
    minutes = sum(one.part.end - one.part.start for one in quiet) / 60
    picks, ciders = np.array([one.num_picks for one in events]), np.array([one.cider for one in events])
    num_quiet_picks = sum(one.num_picks for one in quiet)
    if not len(events):
        picks = ciders = np.array([np.nan])
    return {
        "events": len(events),
        "picks_an_event": (picks.sum() + num_quiet_picks) / len(picks),
        "picks_in_an_event": float(picks.mean()),
        "found": float((picks > 0).mean()) if len(events) else math.nan,
        "cider": float(ciders.mean()),
        "cider_interval": interval(resamples(len(ciders), seed=0) @ ciders),
        "quiet_minutes": minutes,
        "picks_a_quiet_minute": num_quiet_picks / minutes if minutes else math.nan,
    }


def budgets(captioner: Captioner, film: Film) -> list[dict[int, bool]]:
    """Whether each event is found, by budget."""
    with Video(film.path) as video:
        frames = list(video.sample_by_time(fps=1.0))
    found: list[dict[int, bool]] = [{} for _ in film.events]
    for budget in BUDGETS:
        seconds = [pick.seconds for _, pick in captioner.picked(iter(frames), budget=budget).frames]
        for event, picks in zip(found, within(film.events, seconds), strict=True):
            event[budget] = bool(picks)
    return found


# --- Clips ---


def is_blank(glance: NDArray[np.uint8]) -> bool:
    return bool(glance.mean() < DARK or glance.mean() > BRIGHT or glance.std() < FLAT)


def blank_picks(captioner: Captioner, paths: Sequence[Path]) -> dict[str, Any]:
    clips, blank = [], []
    for path in paths:
        with Video(path) as video:
            frames = list(video.sample_evenly(count=captioner.config.video.num_frames))
        blanks = [is_blank(frame.glance()) for frame in frames]
        picks = [pick.index for _, pick in captioner.picker.pick(frames)]
        avoidable = [i for i in picks if blanks[i] and not all(blanks[max(i - NEAR, 0) : i + NEAR + 1])]
        clips.append(len(picks))
        blank += [f"{path.stem}:{i}" for i in avoidable]
    return {
        "clips": len(clips),
        "picks": sum(clips),
        "mean_picks": float(np.mean(clips)),
        "spread": float(np.std(clips)),
        "by_count": np.bincount(clips).tolist(),
        "blank": blank,
        "blank_share": len(blank) / sum(clips),
    }


def cost(captioner: Captioner, *, repeats: int) -> dict[str, Any]:
    """CPU time of glances and policy against that of decoding the same samples."""
    path = footage.make(timing.WORK, **TIMED)  # type: ignore[arg-type]
    ratios = {}
    for name, sample in (
        ("30 frames", lambda video: video.sample_evenly(count=30)),
        ("1 frame a second", lambda video: video.sample_by_time(fps=1.0)),
    ):
        num_frames = 0

        def decode(sample: Any = sample) -> None:
            nonlocal num_frames
            with Video(path) as video:
                num_frames = sum(1 for _ in sample(video))

        def look(sample: Any = sample) -> None:
            with Video(path) as video:
                for _ in captioner.picker.pick(sample(video)):
                    pass

        rounds = timing.alternate({"decode": decode, "look": look}, repeats=repeats)
        decoding, both = (float(np.median([cpu for _, cpu in rounds[one]])) for one in ("decode", "look"))
        shares = [b[1] / a[1] - 1 for a, b in zip(rounds["decode"], rounds["look"], strict=True)]
        ratios[name] = {
            "frames": num_frames,
            "decoding_ms": 1000 * decoding,
            "looking_ms": 1000 * (both - decoding),
            "ms_a_frame": 1000 * (both - decoding) / num_frames,
            "share": float(np.median(shares)),
        }
    return ratios


# --- The page ---


def markdown(result: dict[str, Any]) -> str:
    lines = [
        f"{result['model']}, {result['films']} films of {result['minutes']:.0f} minutes in all, beam {result['beam']}.",
        "",
        "| films | events | picks an event | in the event | found | CIDEr at its end (95 %) | picks a quiet minute |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, part in result["streams"].items():
        low, high = part["cider_interval"]
        lines.append(
            f"| {name} | {part['events']} | {part['picks_an_event']:.1f} | {part['picks_in_an_event']:.1f} "
            f"| {100 * part['found']:.0f} % | {part['cider']:.1f} ({low:.1f} … {high:.1f}) "
            f"| {part['picks_a_quiet_minute']:.2f} |"
        )
    lines += ["", "| kind of quiet | minutes | picks a minute | events after it | found | CIDEr |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name, part in result["by_kind"].items():
        lines.append(
            f"| {name} | {part['quiet_minutes']:.1f} | {_number(part['picks_a_quiet_minute'], 2)} | {part['events']} "
            f"| {_number(100 * part['found'], 0)} | {_number(part['cider'], 1)} |"
        )
    lines += ["", "| events found, % | " + " | ".join(f"N = {n}" for n in BUDGETS) + " |"]
    lines += ["|---|" + "---:|" * len(BUDGETS)]
    for name, found in result["budgets"].items():
        lines.append(f"| `pick --budget N`, {name} | " + " | ".join(f"{100 * found[n]:.0f}" for n in BUDGETS) + " |")
    if clips := result.get("clips"):
        lines += [
            "",
            f"{clips['clips']} clips, {clips['mean_picks']:.2f} picks each (standard deviation {clips['spread']:.2f}): "
            f"{len(clips['blank'])} of {clips['picks']:,} picks ({100 * clips['blank_share']:.1f} %) are black or "
            "blank where a better frame is near.",
        ]
    lines += ["", "| 640×360, H.264 | samples | decoding | glances and policy | a frame | share |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name, spent in result["cost"].items():
        lines.append(
            f"| {name} | {spent['frames']} | {spent['decoding_ms']:.0f} ms | {spent['looking_ms']:.1f} ms "
            f"| {spent['ms_a_frame']:.2f} ms | {100 * spent['share']:.1f} % |"
        )
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=Path, required=True, help="folder of the films of films.py")
    parser.add_argument("--data", type=Path, required=True, help="the data set of the films, with its captions")
    parser.add_argument("--clips", type=Path, help="a folder of videos, to count blank picks")
    parser.add_argument("--model", help="a model folder; the default model otherwise")
    parser.add_argument("--style", help="the style of the captions")
    parser.add_argument("--beam", type=int, help="beam width; the model's by default")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of time")
    parser.add_argument("--out", type=Path, help="folder for streams.json and streams.md")
    arguments = parser.parse_args()
    files = sorted(arguments.clips.iterdir()) if arguments.clips else []
    clips = [path for path in files if path.suffix.lower() in VIDEO_SUFFIXES]
    if arguments.clips and not clips:
        parser.error(f"--clips: no videos in {arguments.clips}")

    captioner, films = load(arguments.model, style=arguments.style), read_films(arguments.films)
    split = load_split(arguments.data, dataset=films[0].dataset, split=films[0].split)  # type: ignore[arg-type]
    cider = Cider({clip.name: [tokenise(text) for text in clip.captions] for clip in split.clips})
    events: list[Watched] = []
    quiet: list[Watched] = []
    found: dict[str, list[dict[int, bool]]] = {}
    for film in films:
        seen, between = watch(captioner, film, cider, beam=arguments.beam)
        events, quiet = [*events, *seen], [*quiet, *between]
        finding = budgets(captioner, film)
        for sort in _sorts(film):
            found.setdefault(sort, []).extend(finding)
        print(f"{film.path.stem}: {sum(one.num_picks for one in (*seen, *between))} picks", flush=True)

    def of(wanted: Callable[[Watched], bool]) -> dict[str, Any]:
        return summary([one for one in events if wanted(one)], [one for one in quiet if wanted(one)])

    sorts = {sort: {film.path.stem for film in films if sort in _sorts(film)} for sort in sorted(found)}
    kinds = sorted({kind for one in (*events, *quiet) for kind in one.part.kinds})
    result: dict[str, Any] = {
        "model": captioner.name,
        "beam": arguments.beam or captioner.config.beam,
        "films": len(films),
        "minutes": sum(film.seconds for film in films) / 60,
        "streams": {sort: of(lambda one, names=names: one.film in names) for sort, names in sorts.items()},
        "by_kind": {kind: of(lambda one, kind=kind: kind in one.part.kinds) for kind in kinds},
        "budgets": {
            sort: {budget: float(np.mean([event[budget] for event in several])) for budget in BUDGETS}
            for sort, several in sorted(found.items())
        },
        "cost": cost(captioner, repeats=arguments.repeats),
        "parts": [{**vars(one), "part": vars(one.part)} for one in (*events, *quiet)],
    }
    if clips:
        result["clips"] = blank_picks(captioner, clips)
    text = markdown(result)
    print(text)
    if arguments.out:
        write_text(arguments.out / "streams.json", json.dumps(result, indent=1) + "\n")
        write_text(arguments.out / "streams.md", text)


def _sorts(film: Film) -> tuple[str, ...]:
    """The rows of a film in the tables."""
    if {*film.kinds} <= {"stills", "repeated"}:
        return ("plain stills",)
    return ("5 to 12 minutes", f"5 to 12 minutes, {film.cut}")


if __name__ == "__main__":
    main()
