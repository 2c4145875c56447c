"""Scene detection in streams: cuts found, false alarms, and CIDEr after a cut.

    python benchmarks/scenes.py --data MSVD --work FOLDER [--films FILMS] [--out FOLDER] [--seeds 0 1 2] [--fps 1]

The validation clips are joined by hard cuts into 24 videos of four or five clips, re-encoded, and sampled at 1 frame a
second. First the cuts that `SceneWatch` finds, and its alarms; an alarm is right if it comes within `patience` frames
after the cut. Cuts inside of clips, as PySceneDetect's content detector finds them at the full frame rate, are counted
separately. Then the CIDEr of the sentence at the end of each clip that follows another, when

  never      the encoder's state is never reset
  watch      it is reset where `SceneWatch` detects a scene
  truth      it is reset at the true cuts
  alone      the clip is captioned alone

and the picker continues, is reset as well, or is reset and also picks the first frame of a scene. With `--films` (of
films.py) false alarms in quiet footage are counted, by kind of quiet. Needs the `bench` extra.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from films import CODECS, FPS, planes, write_video
from scenedetect import ContentDetector, detect

from picknet.captioner import load
from picknet.data.split import Clip, load_split
from picknet.files import write_text
from picknet.metrics import Cider
from picknet.picking.picker import Picker
from picknet.picking.scenes import SceneWatch
from picknet.study.films import read_films, within
from picknet.study.judging import Choice, described
from picknet.text import tokenise
from picknet.video.file import Video
from picknet.video.frame import Frame

NUM_VIDEOS = 24
PATIENCES = (1, 2, 3)
SHIPS = ("watch", "reset")
"""What `Captioner.stream` does."""
PICKER_MODES = ("continues", "reset", "reset, and first frame")


@dataclass(frozen=True)
class Joined:
    """Clips joined by hard cuts."""

    path: Path
    clips: tuple[Clip, ...]
    starts: tuple[float, ...]
    """Start of each clip, in seconds."""
    inner_cuts: tuple[float, ...]
    """Cuts inside of clips, in seconds."""

    def clip_at(self, seconds: float) -> int:
        return int(np.searchsorted(self.starts, seconds + 1e-3, side="right")) - 1


def join(clips: Sequence[Clip], folder: Path, *, seed: int) -> list[Joined]:
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(clips))
    videos = []
    for number, places in enumerate(np.array_split(order, NUM_VIDEOS)):
        chosen = tuple(clips[place] for place in places)
        shown = [planes(clip) for clip in chosen]
        starts = tuple(itertools.accumulate((len(act) / FPS for act in shown[:-1]), initial=0.0))
        path = folder / f"joined-{seed}-{number:02d}.mp4"
        if not path.exists():
            codec, options = CODECS[number % len(CODECS)]
            write_video(path, itertools.chain(*shown), codec=codec, options=options)
        cuts = [scene.seconds for scene, _ in detect(str(path), ContentDetector())[1:]]
        inner = [cut for cut in cuts if min(abs(cut - start) for start in starts) > 2 / FPS]
        videos.append(Joined(path, chosen, starts, tuple(inner)))
    return videos


# --- Alarms ---


@dataclass(frozen=True)
class Alarms:
    patience: int
    cuts: int
    found: int
    alarms: int
    inner: int
    """Alarms at cuts inside of clips."""


def count_alarms(videos: Sequence[tuple[Joined, list[Frame]]], *, patience: int, fps: float) -> Alarms:
    cuts = found = alarms = inner = 0
    for joined, frames in videos:
        watch = SceneWatch(patience=patience)
        alarm_times = [frame.seconds for frame in frames if watch(frame)]

        def near(cut: float, alarm_times: list[float] = alarm_times) -> list[float]:
            return [at for at in alarm_times if cut - 1e-3 <= at < cut + patience / fps - 1e-3]

        right = {at for cut in joined.starts[1:] for at in near(cut)[:1]}
        within = {at for cut in joined.inner_cuts for at in near(cut)[:1]} - right
        cuts += len(joined.starts) - 1
        found += sum(bool(near(cut)) for cut in joined.starts[1:])
        alarms += len(alarm_times)
        inner += len(within)
    return Alarms(patience, cuts, found, alarms, inner)


def quiet_alarms(folder: Path) -> dict[str, tuple[int, float]]:
    """False alarms in quiet stretches, and their hours, by kind; not those up to three seconds after an event."""
    found: dict[str, tuple[int, float]] = {}
    for film in read_films(folder):
        watch = SceneWatch()
        with Video(film.path) as video:
            alarms = [frame.seconds for frame in video.sample_by_time(fps=1.0) if watch(frame)]
        for part, inside in zip(film.quiet, within(film.quiet, alarms), strict=True):
            late = sum(alarms[i] >= part.start + 3 for i in inside)
            for kind in ("all", *part.kinds):
                count, hours = found.get(kind, (0, 0.0))
                found[kind] = count + late, hours + (part.end - part.start) / 3600
    return found


# --- Sentences ---


def remembered(
    joined: Joined, picker: Picker, frames: Sequence[Frame], begins: Callable[[Frame], bool], mode: str
) -> list[Choice]:
    """The frames that a stream's sentence is made from at the end of each clip."""
    scenes: list[list[Frame]] = []
    for frame in frames:
        if not scenes or begins(frame):
            scenes.append([])
        scenes[-1].append(frame)
    scene_of = {frame.index: number for number, scene in enumerate(scenes) for frame in scene}
    picked: set[int] = set()
    for shown in [frames] if mode == "continues" else scenes:
        # In a scene without a pick the learned picker takes the last frame, which is too late here.
        picked |= {pick.index for _, pick in picker.pick(shown)}
    if mode == "reset, and first frame":
        picked |= {scene[0].index for scene in scenes}
    memory: Choice = ()
    at_end: dict[int, Choice] = {}
    for frame in frames:
        if frame.index in picked:
            begun = memory and scene_of[memory[-1]] == scene_of[frame.index]
            memory = (*memory, frame.index) if begun else (frame.index,)
        at_end[joined.clip_at(frame.seconds)] = memory
    return [at_end[number] for number in range(len(joined.clips))]


class _TrueCuts:
    """Detects exactly the true cuts."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._clip = 0

    def __call__(self, frame: Frame) -> bool:
        before, self._clip = self._clip, self._joined.clip_at(frame.seconds)
        return self._clip != before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MSVD's videos and captions")
    parser.add_argument("--work", type=Path, required=True, help="folder for the videos, outside of the repository")
    parser.add_argument("--out", type=Path, help="folder for scenes.json and scenes.md")
    parser.add_argument("--films", type=Path, help="folder of the films of films.py")
    parser.add_argument("--model", help="a model folder; the default model otherwise")
    parser.add_argument("--fps", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()

    captioner = load(arguments.model)
    clips = load_split(arguments.data, dataset="msvd", split="val").clips
    cider = Cider({clip.name: [tokenise(text) for text in clip.captions] for clip in clips})
    own = {clip.name: captioner.caption(clip.path).text for clip in clips}
    videos = []
    for seed in arguments.seeds:
        for joined in join(clips, arguments.work, seed=seed):
            with Video(joined.path) as video:
                videos.append((joined, list(video.sample_by_time(fps=arguments.fps))))

    scores: dict[tuple[str, str], list[float]] = {}
    names = [clip.name for joined, _ in videos for clip in joined.clips[1:]]

    def add_scores(rule: str, mode: str, joined: Joined, texts: Sequence[str]) -> None:
        followers = [clip.name for clip in joined.clips[1:]]
        found = cider.scores(followers, [tokenise(text) for text in texts[1:]])
        scores.setdefault((rule, mode), []).extend((100 * found).tolist())

    rules = (("never", lambda _: lambda frame: False), ("watch", lambda _: SceneWatch()), ("truth", _TrueCuts))
    for joined, frames in videos:
        ends = {
            (rule, mode): remembered(joined, captioner.picker, frames, make(joined), mode)
            for rule, make in rules
            for mode in (PICKER_MODES[:1] if rule == "never" else PICKER_MODES)
        }
        choices = {choice for several in ends.values() for choice in several if choice}
        features = np.concatenate([captioner.features(frame) for frame in frames])
        captions = {(): "", **described(captioner, features, choices, beam=captioner.config.beam)}
        for (rule, mode), several in ends.items():
            add_scores(rule, mode, joined, [captions[choice] for choice in several])
        add_scores("alone", "30 frames of it", joined, [own[clip.name] for clip in joined.clips])

    result = {
        "seeds": arguments.seeds,
        "fps": arguments.fps,
        "videos": len(videos),
        "alarms": [vars(count_alarms(videos, patience=patience, fps=arguments.fps)) for patience in PATIENCES],
        "quiet": quiet_alarms(arguments.films) if arguments.films else {},
        "cider": {f"{rule}, {mode}": float(np.mean(values)) for (rule, mode), values in scores.items()},
        "difference": {
            f"{rule}, {mode}": difference(names, values, scores[SHIPS]) for (rule, mode), values in scores.items()
        },
        "clips": len(names),
    }
    text = markdown(result)
    print(text)
    if arguments.out:
        write_text(arguments.out / "scenes.json", json.dumps(result, indent=2) + "\n")
        write_text(arguments.out / "scenes.md", text)


def difference(names: Sequence[str], values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The mean difference of two rows of scores and its standard error, over clips: each clip is in a video a seed."""
    by_clip: dict[str, list[float]] = {}
    for name, value, other in zip(names, values, others, strict=True):
        by_clip.setdefault(name, []).append(value - other)
    means = [float(np.mean(several)) for several in by_clip.values()]
    return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(len(means)))


def markdown(result: dict[str, Any]) -> str:
    lines = ["| Patience | Cuts found | Alarms | at these cuts | at cuts inside of clips | at none |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in result["alarms"]:
        recall, alarms = one["found"] / one["cuts"], one["alarms"]
        none = alarms - one["found"] - one["inner"]
        lines.append(
            f"| {one['patience']} | {one['found']} of {one['cuts']} ({100 * recall:.0f} %) | {alarms} "
            f"| {one['found']} ({100 * one['found'] / alarms:.0f} %) | {one['inner']} | {none} |"
        )
    if result["quiet"]:
        lines += ["", "| Kind of quiet | Hours | False alarms |", "|---|---|---|"]
        lines += [f"| {kind} | {hours:.2f} | {count} |" for kind, (count, hours) in result["quiet"].items()]
    lines += ["", f"| State | Picker | CIDEr of {result['clips']} sentences | minus {', '.join(SHIPS)} |"]
    lines += ["|---|---|---|---|"]
    for name, value in result["cider"].items():
        rule, mode = name.split(", ", 1)
        mean, error = result["difference"][name]
        lines.append(f"| {rule} | {mode} | {value:.1f} | {mean:+.1f} ± {error:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
