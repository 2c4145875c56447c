"""The paper's tables: PickNet with each of its rewards, against simple picks, on validation clips.

    python benchmarks/paper.py train --data msvd=MSVD --out OUT [--device cuda] [--minutes 9] [--resume]
    python benchmarks/paper.py train --data msrvtt=MSRVTT --out OUT [--set text.categories=true]
    python benchmarks/paper.py meteor OUT/paper.json --data msvd=MSVD
    python benchmarks/paper.py draw OUT/paper.json

`train` trains with `configs/msvd-paper.toml` or `configs/msrvtt-paper.toml`: supervision once, then reinforcement and
adaptation from there for each row, all rows side by side:

  V+L            λ_l r_l + λ_v r_v, with arXiv v1's visual diversity, the deviation of the features
  V+L, cosine    with that of ECCV 2018, their cosine distance
  V, V cosine    the visual diversity alone
  L              the language reward alone

It then captions the validation clips greedily from the frames that each PickNet picks and, with the captioner of
supervision alone, from all 30 frames and from 6 evenly spaced ones, 6 random ones and 6 by k-means. It writes
`paper.json` and `paper.md`. `meteor` adds METEOR to both where the extra was missing, `draw` makes a picture of the
histograms of picks, and needs matplotlib.

The CNN is EfficientNet-Lite2 at 256 pixels by default; the paper's is ResNet-152 (`--cnn resnet152 --image-size 224`),
whose weights timm downloads. The features of all clips are stored in OUT/feature-cache, or --cache, once for all rows.

With --minutes, rows that are not done by then are stopped, and the table has those that are; --resume goes on from the
checkpoints, also after a kill. One row is one command, here V+L with the cosine form:

    picknet train configs/msvd-paper.toml --data msvd=MSVD --out OUT/supervision --stage supervision
    picknet train configs/msvd-paper.toml --data msvd=MSVD --out OUT/vl-cosine --from OUT/supervision \\
        --stage reinforcement --stage adaptation --set reward.diversity=cosine --set reward.diversity_weight=1
"""

import argparse
import contextlib
import csv
import dataclasses
import json
import multiprocessing
import multiprocessing.connection
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from picknet import metrics
from picknet.files import write_text

if TYPE_CHECKING:
    import torch

    from picknet.config import Config
    from picknet.training.features import FeatureSplit
    from picknet.training.network import Network

ROOT = Path(__file__).parent.parent
COSINE = ("reward.diversity=cosine", "reward.diversity_weight=1")
VARIANTS = {
    "vl": ("V+L", ()),
    "vl-cosine": ("V+L, cosine", COSINE),
    "v": ("V", ("reward.language_weight=0",)),
    "v-cosine": ("V, cosine", ("reward.language_weight=0", *COSINE)),
    "l": ("L", ("reward.diversity_weight=0",)),
}
"""Folder: name in the table, settings."""

NUM_PICKS = 6
"""Of the simple picks: about as many as the paper's PickNet picks."""
DRAWS = 5
"""Random picks and k-means are drawn this many times; the table has the mean."""
STOP_SECONDS = 20.0
"""Before --minutes are over, rows are stopped: what is left is for the table."""


@dataclass(frozen=True)
class Job:
    """A run of `picknet.training.recipe.train` in a process of its own."""

    out: Path
    settings: tuple[str, ...]
    stages: tuple[str, ...]
    data: str | tuple[str, ...]
    cache: Path
    device: str
    resume: bool
    config: Path
    start: Path | None = None
    fold: str | None = None

    @property
    def is_done(self) -> bool:
        return (self.out / "model").is_dir()


def work(job: Job) -> None:
    """Train, in a process that multiprocessing has started."""
    import torch

    from picknet.training import export, recipe
    from picknet.training.progress import TrainingProgress

    class Printed(TrainingProgress):
        def on_epoch(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
            if done % 10 == 0 or done == total:
                shown = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
                print(f"{job.out.name}: {stage} {done}/{total}: {shown}", flush=True)

        def on_note(self, text: str) -> None:
            print(f"{job.out.name}: {text}", flush=True)

    torch.set_num_threads(2)
    export._export_graphs = lambda *_: None  # nothing here uses them; `picknet export` writes a model with its graphs
    recipe.train(
        job.config,
        data=job.data,
        out=job.out,
        settings=job.settings,
        stages=job.stages,
        start=job.start,
        fold=job.fold,
        resume=job.resume and (job.out / "config.toml").exists(),
        device=job.device,
        cache=job.cache,
        progress=Printed(),
        command=shlex.join(["python", *sys.argv]),
    )


def run(jobs: Sequence[Job], deadline: float, *, at_once: int | None = None) -> dict[str, str]:
    """Run jobs side by side, `at_once` of them or all; those that have not ended at the deadline are stopped.

    -> what became of each
    """
    spawn = multiprocessing.get_context("spawn")
    waiting = [job for job in jobs if not job.is_done]
    running: dict[Job, Any] = {}
    ended: dict[Job, Any] = {}
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and len(running) < (at_once or len(jobs)):
            job = waiting.pop(0)
            running[job] = spawn.Process(target=work, args=(job,), name=job.out.name)
            running[job].start()
        sentinels = [process.sentinel for process in running.values()]
        multiprocessing.connection.wait(sentinels, max(0.0, deadline - time.monotonic()))
        for job in [job for job, process in running.items() if not process.is_alive()]:
            ended[job] = running.pop(job)
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.join()

    def state(job: Job) -> str:
        if job.is_done:
            return "done"
        if job in ended:
            return f"failed: {ended[job].exitcode}"
        return "stopped" if job in running else "not begun"

    return {job.out.name: state(job) for job in jobs}


# --- The table ---


class Judged:
    """The validation clips, and the scores of captions from some of their frames."""

    meteor = False
    """Whether METEOR is computed, which takes seconds for each row."""

    def __init__(self, config: "Config", network: "Network", *, data: str, cache: Path, device: "torch.device") -> None:
        from picknet.data.split import data_folders, load_split
        from picknet.training.features import extract_features

        (folder,) = data_folders([data], "folder")
        split = load_split(folder.folder, dataset=folder.dataset, split="val")
        self.num_frames = config.video.num_frames
        self.split: FeatureSplit = extract_features(split, network.cnn, config, cache=cache).to(device)
        self.references = {clip.name: clip.captions for clip in self.split.clips}

    def row(self, model: Path, picks: "Callable[[Network], torch.Tensor] | Sequence[torch.Tensor]") -> dict[str, Any]:
        """Scores of a model with the picks of its PickNet, or their means over several choices of picks."""
        from picknet.study.bootstrap import interval, resamples
        from picknet.training import bench
        from picknet.training.export import load_network

        network, vocabulary, config = load_network(model)
        network.to(self.split.features.device).eval()
        choices = [picks(network)] if callable(picks) else picks
        rows, written = [], []
        for picked in choices:
            captions = bench.captions(network, vocabulary, config, self.split, picked)
            written.append(captions)
            with contextlib.nullcontext() if self.meteor else patch.object(metrics, "meteor", return_value=None):
                measured = metrics.measure(captions, self.references)
            low, high = interval(100 * resamples(len(captions), seed=0) @ measured.cider)
            counts, positions = picked.sum(1).tolist(), picked.nonzero()[:, 1].tolist()
            rows.append(
                {
                    **dataclasses.asdict(measured.scores()),
                    "cider_low": low,
                    "cider_high": high,
                    "mean_picks": float(np.mean(counts)),
                    "pick_counts": np.bincount(counts, minlength=self.num_frames + 1).tolist(),
                    "pick_positions": np.bincount(positions, minlength=self.num_frames).tolist(),
                }
            )
        means = {key: _mean([row[key] for row in rows]) for key in rows[0]}
        return means | {"captions": written}

    def simple_picks(self) -> "dict[str, list[torch.Tensor]]":
        """The picks of the simple pickers, each as often as they are drawn."""
        import torch

        from picknet.picking.plain import cluster, nearest_points
        from picknet.training.stages import all_frames, evenly, random_subsets

        counts, device = self.split.counts, self.split.counts.device
        sizes = counts.clamp(max=NUM_PICKS)

        def by_clusters(seed: int) -> "torch.Tensor":
            generator = np.random.default_rng(seed)
            features = self.split.features.double().mean(2).cpu().numpy()
            picked = torch.zeros(len(counts), self.num_frames, dtype=torch.bool)
            for row, points, count in zip(picked, features, counts.tolist(), strict=True):
                points = points[:count]
                row[nearest_points(points, cluster(points, min(NUM_PICKS, count), generator))] = True
            return picked.to(device)

        def at_random(seed: int) -> "torch.Tensor":
            return random_subsets(counts, self.num_frames, sizes, torch.Generator(device).manual_seed(seed))

        return {
            f"all {self.num_frames} frames": [all_frames(counts, self.num_frames)],
            f"{NUM_PICKS} evenly spaced": [evenly(counts, self.num_frames, NUM_PICKS)],
            f"{NUM_PICKS} at random": [at_random(seed) for seed in range(DRAWS)],
            f"{NUM_PICKS} by k-means": [by_clusters(seed) for seed in range(DRAWS)],
        }


def _mean(values: Sequence[Any]) -> Any:
    if values[0] is None:
        return None
    mean = np.mean(values, axis=0)
    return mean.tolist() if mean.ndim else float(mean)


def epoch_seconds(run_folder: Path) -> dict[str, float]:
    """The mean seconds of an epoch of each stage."""
    with (run_folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        seconds: dict[str, list[float]] = {}
        for row in csv.DictReader(file):
            seconds.setdefault(row["stage"], []).append(float(row["seconds"]))
    return {stage: float(np.mean(values)) for stage, values in seconds.items()}


def table(found: Mapping[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| picks | B-4 | R-L | M | CIDEr | 95 % | mean picks |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for name, row in found["rows"].items():
        meteor = "–" if row["meteor"] is None else f"{row['meteor']:.1f}"
        cider = f"{row['cider']:.1f} | {row['cider_low']:.1f} … {row['cider_high']:.1f}"
        scores = f"{row['bleu4']:.1f} | {row['rouge_l']:.1f} | {meteor} | {cider} | {row['mean_picks']:.1f}"
        lines.append(f"| {name} | {scores} |")
    seconds = "\n".join(
        f"- {run_name}: " + ", ".join(f"{stage} {value:.2f} s" for stage, value in stages.items())
        for run_name, stages in found["epoch_seconds"].items()
    )
    states = ", ".join(f"{name} {state}" for name, state in found["runs"].items())
    return (
        f"# The paper's table on {found['clips']} validation clips of {found['dataset']}\n\n"
        f"`{found['command']}`, commit {found['commit']}, {found['seconds'] / 60:.1f} minutes, "
        f"{found['device']}.\n\n"
        f"{found['cnn']} Greedy captions. Intervals by bootstrap over the clips.\n\n"
        + "\n".join(lines)
        + f"\n\nRuns: {states}. Mean time of an epoch, with validation:\n\n{seconds}\n"
    )


def train(arguments: argparse.Namespace) -> None:
    from picknet.data.split import data_folders

    started = time.monotonic()
    deadline = started + 60 * arguments.minutes - STOP_SECONDS
    out, cache = arguments.out, arguments.cache or arguments.out / "feature-cache"
    settings = [f"model.cnn={arguments.cnn}", f"model.image_size={arguments.image_size}", *arguments.set]
    if arguments.epochs:
        settings += [f"{stage}.epochs={arguments.epochs}" for stage in ("supervision", "reinforcement", "adaptation")]
    (folder,) = data_folders([arguments.data], "folder")
    common = {
        "config": ROOT / "configs" / f"{folder.dataset}-paper.toml",
        "data": arguments.data,
        "cache": cache,
        "device": arguments.device,
        "resume": arguments.resume,
    }
    supervision = Job(out / "supervision", tuple(settings), ("supervision",), **common)
    later = ("reinforcement", "adaptation")
    rows = [
        Job(out / name, (*settings, *own), later, start=supervision.out, **common)
        for name, (_, own) in VARIANTS.items()
        if name in arguments.rows
    ]
    states = run([supervision], deadline)
    if not supervision.is_done:
        sys.exit(f"{supervision.out}: {states['supervision']}; go on with --resume")
    states |= run(rows, deadline)
    found = measured(arguments, [job for job in rows if job.is_done], supervision.out, cache)
    found |= {
        "runs": states,
        "seconds": time.monotonic() - started,
        "epoch_seconds": {
            job.out.name: epoch_seconds(job.out) for job in (supervision, *rows) if (job.out / "metrics.csv").exists()
        },
    }
    write_text(out / "paper.json", json.dumps(found, indent=1) + "\n")
    write_text(out / "paper.md", table(found))
    print(table(found))
    if any(state != "done" for state in states.values()):
        sys.exit("not all rows are done; go on with --resume")


def measured(arguments: argparse.Namespace, jobs: Sequence[Job], supervised: Path, cache: Path) -> dict[str, Any]:
    """Scores of the simple picks, and of the rows that are done."""
    import torch

    from picknet.training.export import load_network
    from picknet.training.recipe import _configure_torch, find_device
    from picknet.training.stages import greedy_picks

    _configure_torch()
    device = find_device(arguments.device)
    network, _, config = load_network(supervised / "model")
    judged = Judged(config, network.to(device), data=arguments.data, cache=cache, device=device)
    judged.meteor = arguments.meteor
    rows = {
        f"{name}, supervision alone": judged.row(supervised / "model", choices)
        for name, choices in judged.simple_picks().items()
    }
    for job in jobs:
        name = f"PickNet ({VARIANTS[job.out.name][0]})"
        rows[name] = judged.row(job.out / "model", lambda network: greedy_picks(network, judged.split))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    paper = "" if arguments.cnn == "resnet152" else " in place of the paper's ResNet-152"
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit.strip() or "unknown",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else str(device),
        "cnn": f"The CNN is {arguments.cnn} at {arguments.image_size} pixels{paper}, not trained.",
        "dataset": arguments.data.partition("=")[0],
        "clips": len(judged.split.clips),
        "num_frames": judged.num_frames,
        "rows": rows,
    }


def add_meteor(arguments: argparse.Namespace) -> None:
    """METEOR of the captions in the JSON file, where they were written without it."""
    from picknet.data.split import data_folders, load_split

    found = json.loads(arguments.json.read_text(encoding="utf-8"))
    (folder,) = data_folders([arguments.data], "folder")
    clips = load_split(folder.folder, dataset=folder.dataset, split="val").clips
    for row in found["rows"].values():
        names = row["captions"][0]
        references = {clip.name: clip.captions for clip in clips if clip.name in names}
        row["meteor"] = _mean([metrics.score(captions, references).meteor for captions in row["captions"]])
    write_text(arguments.json, json.dumps(found, indent=1) + "\n")
    write_text(arguments.json.with_name("paper.md"), table(found))
    print(table(found))


def draw(arguments: argparse.Namespace) -> None:
    """picks.png beside the JSON file: the histograms of picks of each PickNet, one below the other."""
    from PIL import Image

    from picknet.study.charts import pick_histograms, save

    found = json.loads(arguments.json.read_text(encoding="utf-8"))
    path, pictures = arguments.json.with_name("picks.png"), []
    for name, row in found["rows"].items():
        if not name.startswith("PickNet"):
            continue
        counts, positions = (
            np.repeat(np.arange(len(row[key])), np.array(row[key], dtype=int)).tolist()
            for key in ("pick_counts", "pick_positions")
        )
        save(pick_histograms(counts, positions, num_frames=found["num_frames"], name=f"{name}: number of picks"), path)
        pictures.append(Image.open(path).convert("RGB"))
    whole = Image.new("RGB", (pictures[0].width, sum(picture.height for picture in pictures)))
    for number, picture in enumerate(pictures):
        whole.paste(picture, (0, number * picture.height))
    whole.resize((whole.width // 2, whole.height // 2), Image.Resampling.LANCZOS).quantize(64).save(path, optimize=True)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train", help="train all rows, and write paper.json and paper.md")
    training.add_argument("--data", required=True, help="msvd=FOLDER or msrvtt=FOLDER")
    training.add_argument("--out", type=Path, required=True, help="folder for the runs and the table")
    training.add_argument("--cache", type=Path, help="folder of features, by default OUT/feature-cache")
    training.add_argument("--device", default="auto")
    training.add_argument("--cnn", default="efficientnet_lite2")
    training.add_argument("--image-size", type=int, default=256)
    training.add_argument("--rows", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS))
    training.add_argument("--epochs", type=int, help="of each stage, by default those of the paper")
    training.add_argument("--set", action="append", default=[], help="any other setting, such as seed=1")
    training.add_argument("--minutes", type=float, default=60.0, help="stop rows that are not done by then")
    training.add_argument("--resume", action="store_true", help="go on with the runs in OUT")
    training.add_argument("--meteor", action="store_true", help="compute METEOR as well, with the `meteor` extra")
    training.set_defaults(command=train)
    scoring = commands.add_parser("meteor", help="add METEOR to paper.json and paper.md, with the `meteor` extra")
    scoring.add_argument("json", type=Path, help="paper.json")
    scoring.add_argument("--data", required=True, help="msvd=FOLDER or msrvtt=FOLDER")
    scoring.set_defaults(command=add_meteor)
    drawing = commands.add_parser("draw", help="draw the histograms of picks")
    drawing.add_argument("json", type=Path, help="paper.json")
    drawing.set_defaults(command=draw)
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
