"""The field on one bench: the systems of the paper's tables, trained alike on one data set, judged on the same clips.

    python benchmarks/field.py train --data msvd=MSVD --out OUT [--device cuda] [--minutes 9] [--resume]
    python benchmarks/field.py judge --data msvd=MSVD --out OUT [--device cuda]
    python benchmarks/field.py score --data msvd=MSVD --out OUT
    python benchmarks/field.py time --data msvd=MSVD --out OUT [--clips 20]

`train` extracts the features of all clips once, then trains all systems of configs/systems, several side by side,
into OUT/NAME, and goes on with `judge` and `score`. With --seeds 0 1 2 it trains each as often, into
OUT/NAME-seed1 and so on; with --few it also trains each on random subsets of 3 to 8 frames, into OUT/NAME-few, so that
few frames are nothing new to it; with --folds 5 it trains on four fifths of the training clips and validates on the
fifth, five times.

With --minutes, systems that are not done by then are stopped, and judged as far as they have come: the table says how
many epochs. --resume goes on from the checkpoints, also after a kill. One system is one command:

    picknet train configs/systems/ta.toml --data msvd=MSVD --out OUT/ta

`judge` captions the validation clips with each system in OUT: from its own frames, from those that the PickNet of the
shipped model picks, from as many evenly spaced ones, and from all, into OUT/field.json. OpenVINO is not needed.

`score` adds the scores of these captions, and writes OUT/field.md with the tables and, with matplotlib, the picture
OUT/field.png. METEOR needs the `meteor` extra, and is left out without it. With --captions, `train` and `judge` end
before that, so that it can be done on another machine.

`time` measures on this machine's CPU how long a caption takes, decoding included, with the graphs of each system that
has them, and writes OUT/time.md. It needs OpenVINO, and a quiet machine.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from paper import STOP_SECONDS, Job, run

from picknet.files import write_text

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs" / "systems"
SYSTEMS = tuple(sorted(path.stem for path in CONFIGS.glob("*.toml")))
FEW = ("supervision.min_frames=3", "supervision.max_frames=8")


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """A job for each system, seed, fold and choice of frames to train on."""
    settings = [*arguments.set, *([f"supervision.epochs={arguments.epochs}"] if arguments.epochs else [])]
    variants: dict[str, tuple[str, ...]] = {"": ()}
    if arguments.few:
        variants["-few"] = FEW
    folds = [None] if not arguments.folds else [f"{number + 1}/{arguments.folds}" for number in range(arguments.folds)]
    found = []
    # Folds first, so that a run that is stopped has whole ones of all systems.
    for fold, seed, name, (suffix, own) in itertools.product(
        folds, arguments.seeds, arguments.systems, variants.items()
    ):
        seeded = f"-seed{seed}" if seed else ""
        folder = f"{name}{suffix}{seeded}{'-fold' + fold.replace('/', 'of') if fold else ''}"
        found.append(
            Job(
                arguments.out / folder,
                (*settings, *own, f"seed={seed}"),
                ("supervision",),
                data=tuple(arguments.data),
                cache=cache_of(arguments),
                device=arguments.device,
                resume=arguments.resume,
                config=CONFIGS / f"{name}.toml",
                fold=fold,
            )
        )
    return found


def half_of_the_cores() -> int:
    return max(1, (os.cpu_count() or 1) // 2)


def cache_of(arguments: argparse.Namespace) -> Path:
    folder: Path = arguments.cache or arguments.out / "feature-cache"
    return folder


def extract(arguments: argparse.Namespace) -> None:
    """The features of all clips into the cache, before processes would all extract them."""
    workers = half_of_the_cores()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(extract_part, [(arguments, slice(start, None, workers)) for start in range(workers)]))


def extract_part(arguments_and_part: "tuple[argparse.Namespace, slice]") -> None:
    """The features of some clips of each split."""
    from picknet.config import load_config
    from picknet.data.split import data_folders
    from picknet.training.cnn import CNN
    from picknet.training.export import round_to_half
    from picknet.training.features import extract_features
    from picknet.training.folds import official_splits
    from picknet.training.recipe import _configure_torch, find_device

    arguments, part = arguments_and_part
    _configure_torch()
    splits = official_splits(data_folders(arguments.data, "folder"))
    done = set()
    for name in arguments.systems:
        config = load_config(CONFIGS / f"{name}.toml", arguments.set)
        kind = (config.model.cnn, config.model.image_size, config.model.grid, config.video.num_frames)
        if kind in done:
            continue
        done.add(kind)
        cnn = CNN(config.model).eval()
        round_to_half(cnn)  # as in training, so that they are found
        cnn.to(find_device(arguments.device))
        for split in splits:
            if some := split.clips[part]:
                extract_features(replace(split, clips=some), cnn, config, cache=cache_of(arguments))


def train(arguments: argparse.Namespace) -> None:
    deadline = time.monotonic() + 60 * arguments.minutes - 3 * STOP_SECONDS  # what is left is for the captions
    extract(arguments)
    states = run(jobs(arguments), deadline, at_once=arguments.at_once or half_of_the_cores())
    judge(arguments)
    if unfinished := {name: state for name, state in states.items() if state != "done"}:
        sys.exit(f"not all systems are done ({unfinished}); go on with --resume")


def judge(arguments: argparse.Namespace) -> None:
    import torch

    from picknet.data.split import data_folders
    from picknet.training.recipe import find_device
    from picknet.training.runs import checkpoint, commit

    device = find_device(arguments.device)
    runs = [path for path in arguments.out.iterdir() if checkpoint(path, "supervision", "best").exists()]
    if not runs:
        sys.exit(f"{arguments.out}: no run folder with a checkpoint")
    runs.sort(key=lambda path: (path.name.rpartition("-fold")[2], path.name))  # those of a fold share their clips
    workers = min(len(runs), half_of_the_cores())
    parts = [list(part) for part in np.array_split(np.array(runs, dtype=object), workers)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        described = [one for part in pool.map(describe, [(arguments, part) for part in parts]) for one in part]
    facts = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit() or "unknown",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else str(device),
        "dataset": data_folders(arguments.data, "folder")[0].dataset,
    }
    write_text(arguments.out / "field.json", json.dumps({**facts, "described": described}) + "\n")
    if not arguments.captions:
        score(arguments)


def describe(arguments_and_runs: "tuple[argparse.Namespace, list[Path]]") -> "list[dict[str, Any]]":
    """What some runs say of their clips."""
    from picknet.data.split import data_folders
    from picknet.training.bench import Bench
    from picknet.training.recipe import _configure_torch, find_device

    arguments, runs = arguments_and_runs
    _configure_torch()
    bench = Bench(data_folders(arguments.data, "folder"), cache_of(arguments), find_device(arguments.device))
    described, _ = bench.describe(runs, on_run=lambda folder: print(f"judging {folder.name}", flush=True))
    return [asdict(one) for one in described]


def score(arguments: argparse.Namespace) -> None:
    from picknet.data.split import data_folders, load_split
    from picknet.study import field

    found = json.loads((arguments.out / "field.json").read_text(encoding="utf-8"))
    references = {
        clip.name: clip.captions
        for part in data_folders(arguments.data, "folder")
        for split in ("train", "val")
        for clip in load_split(part.folder, dataset=part.dataset, split=split).clips
    }
    facts = {key: found[key] for key in ("command", "commit", "device", "dataset")}
    field.write(found["described"], references, arguments.out, facts=facts)
    print((arguments.out / "field.md").read_text(encoding="utf-8"))


def measure_time(arguments: argparse.Namespace) -> None:
    import picknet
    from picknet.config import SYSTEMS_WITHOUT_GRAPHS, load_config
    from picknet.data.split import data_folders
    from picknet.picking.plain import AllPicker, UniformPicker
    from picknet.study.evaluation import markdown_table
    from picknet.study.field import NAMES
    from picknet.training.folds import official_splits
    from picknet.training.recipe import export_run
    from picknet.training.runs import commit

    _, split = official_splits(data_folders(arguments.data, "folder"))
    clips = split.clips[: arguments.clips]
    shipped = picknet.load()
    pickers = {"all frames": AllPicker(), "PickNet's": shipped.picker, "4 evenly spaced": UniformPicker(4)}
    cells = [["system", *pickers]]
    for run_folder in sorted(path.parent for path in arguments.out.glob("*/config.toml")):
        system = load_config(run_folder / "config.toml").model.system
        if system in SYSTEMS_WITHOUT_GRAPHS:
            continue
        with tempfile.TemporaryDirectory() as folder:
            export_run(run_folder, Path(folder) / "model")
            captioner = picknet.load(Path(folder) / "model")
            row = []
            for picker in pickers.values():
                captioner.caption(clips[0].path, picker=picker)  # graphs are compiled
                seconds = []
                for clip in clips:
                    start = time.perf_counter()
                    captioner.caption(clip.path, picker=picker)
                    seconds.append(time.perf_counter() - start)
                row.append(f"{statistics.median(seconds):.2f} s")
        cells.append([NAMES[system], *row])
        print(cells[-1], flush=True)
    about = f"`{shlex.join(['python', *sys.argv])}`, commit {commit() or 'unknown'}: the median of {len(clips)} clips."
    write_text(arguments.out / "time.md", f"{about}\n\n{markdown_table(cells)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, command, text in (
        ("train", train, "train all systems, then judge them"),
        ("judge", judge, "caption with the runs in OUT, write field.json, and score"),
        ("score", score, "score the captions in OUT/field.json, and write field.md"),
        ("time", measure_time, "measure how long captions take on the CPU, and write time.md"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("--data", action="append", required=True, help="msvd=FOLDER or msrvtt=FOLDER, or several")
        one.add_argument("--out", type=Path, required=True, help="folder of the runs and the table")
        one.add_argument("--cache", type=Path, help="folder of features, by default OUT/feature-cache")
        one.add_argument("--device", default="auto")
        one.set_defaults(command=command)
        if command in (train, judge):
            one.add_argument("--captions", action="store_true", help="end with the captions, without scores")
        if command is measure_time:
            one.add_argument("--clips", type=int, default=20)
        if command is not train:
            continue
        one.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
        one.add_argument("--seeds", type=int, nargs="+", default=[0])
        one.add_argument("--folds", type=int, help="cross-validation over the training clips")
        one.add_argument("--few", action="store_true", help="also train each on 3 to 8 random frames")
        one.add_argument("--epochs", type=int, help="by default those of the configs")
        one.add_argument("--set", action="append", default=[], help="any other setting")
        one.add_argument("--at-once", type=int, help="trainings side by side, by default half as many as cores")
        one.add_argument("--minutes", type=float, default=60.0, help="stop systems that are not done by then")
        one.add_argument("--resume", action="store_true", help="go on with the runs in OUT")
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
