"""`picknet train`, `picknet export`, `picknet report` and `picknet bench`."""

import json
import shlex
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.arguments import BadUsage, DatasetName, Quiet, needing
from picknet.cli.terminal import is_quiet, many, note, progress, progress_bars, shows_progress
from picknet.training.progress import TrainingProgress

if TYPE_CHECKING:
    from rich.progress import Progress

_train_extra = partial(needing, "train", sentence="training needs {}, which is not installed;")


class StageName(StrEnum):
    supervision = "supervision"
    reinforcement = "reinforcement"
    adaptation = "adaptation"


class DeviceName(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders. Runs that differ only in the seed are averaged.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write report.md and the training curves to.")
    ],
    quiet: Quiet = False,
) -> None:
    """Summarise training runs: the gain of each stage, curves, training time."""
    from picknet.study import report

    report.write(report.read_runs(runs), out)
    print(out / "report.md")


def train(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]DIR",
            help="A data folder. Repeat it for several, each with the name of its data set, such as coco=DIR.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="Run folder to create. The model is written to its model/."),
    ],
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="Settings file, such as configs/msvd.toml.")
    ] = None,
    dataset: Annotated[
        DatasetName | None,
        typer.Option(help="Data set of a DIR without a name. Default: msvd, or folder for --from without a config."),
    ] = None,
    stage: Annotated[
        list[StageName] | None,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help=f"Run only this stage: {', '.join(StageName)}. Can be repeated. "
            "Default: all with epochs; for --from without a config, one.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, such as reward.penalty=-2."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start from this model, with its words, weights and settings.")
    ] = None,
    fold: Annotated[
        str | None, typer.Option(metavar="K/N", help="Validate on the K-th of N parts of the training clips.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN|MODEL=DATASET",
            help="What rewards PickNet: the run of a fold, on the clips it was validated on; or a model that was not "
            "trained on this data set, on all of its clips.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    device: Annotated[DeviceName, typer.Option(help="Device to train on.")] = DeviceName.auto,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for decoded frames and features. Default: beside the run folder.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model in the paper's three stages, or fine-tune one."""
    from picknet.data.split import data_folders

    default = DatasetName.folder if start and not config else DatasetName.msvd
    folders = data_folders(data, (dataset or default).value)
    with _train_extra(), _TrainingDisplay() as display:
        from picknet.training import recipe

        model = recipe.train(
            config,
            data=folders,
            out=out,
            settings=settings or (),
            stages=None if stage is None else [name.value for name in stage],
            start=start,
            fold=fold,
            judges=judge or (),
            resume=resume,
            device=device.value,
            cache=cache,
            progress=display,
            command=shlex.join(["picknet", *sys.argv[1:]]),
        )
    print(f"{model}: trained; try picknet caption VIDEO --model {out}")


class _TrainingDisplay(TrainingProgress):
    """Progress bars on a terminal; otherwise one line per epoch on standard output, unless --quiet leaves both out."""

    def __init__(self) -> None:
        self._bars: Progress | None = progress_bars("{task.fields[figures]}") if shows_progress() else None
        self._tasks: dict[str, Any] = {}
        self._prints_lines = not sys.stdout.isatty() and not is_quiet()

    def __enter__(self) -> "_TrainingDisplay":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def on_epoch(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        texts = {name: f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items()}
        chief = [texts[name] for name in ("loss", "reward", "picks", "val_cider", "best_epoch") if name in texts]
        self._update(stage, done, total, ", ".join(chief))
        if self._prints_lines:
            print(f"{stage} {done}/{total}: {', '.join(texts.values())}", flush=True)

    def on_clip(self, split: str, done: int, total: int) -> None:
        self._update(f"decoding {split}", done, total, "")
        if done == total and self._prints_lines:
            print(f"{split}: {many(total, 'clip')} decoded", flush=True)

    def on_note(self, text: str) -> None:
        note(text)

    def _update(self, name: str, done: int, total: int, figures: str) -> None:
        if self._bars is None:
            return
        if name not in self._tasks:  # a resumed stage starts in the middle
            self._tasks[name] = self._bars.add_task(name, total=total, completed=done - 1, figures=figures)
        self._bars.update(self._tasks[name], completed=done, figures=figures)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or a model folder.")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    card: Annotated[
        Path | None, typer.Option(help="JSON object of more facts for people (licence, scores), added to card.json.")
    ] = None,
    min_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Leave out words that are in a smaller share of the captions of each --data, such as 0.00025.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="A data folder for --min-share. Can be repeated.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the best model of a run as a model folder.

    \b
    Examples:
      picknet export runs/msvd models/mine --card facts.json
      picknet export runs/msvd models/short --min-share 0.00025 --data msvd=msvd/ --data msrvtt=msrvtt/
    """
    from picknet.data.split import data_folders

    facts = _read_card(card) if card else {}
    if min_share is not None and not 0 < min_share < 1:
        raise BadUsage(f"--min-share {min_share:g}: a share of captions between 0 and 1 is possible, such as 0.00025")
    if (min_share is None) != (not data):
        raise BadUsage("--min-share and --data belong together: words are counted in the captions of data folders")
    folders = data_folders(data or (), None)
    with _train_extra():
        from picknet.training import recipe
        from picknet.training.shortlist import NUM_CLIPS

        with progress("looking at clips", NUM_CLIPS * len(folders)) as advance:
            recipe.export_run(run, out, facts=facts, data=folders, min_share=min_share or 0.0, on_clip=advance)
    print(out)


def bench(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders of captioning systems, with one CNN that was not trained."),
    ],
    data: Annotated[
        list[str], typer.Option(metavar="[NAME=]DIR", help="The data folder that they were trained on; as for train.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write field.md, field.json and field.png to.")
    ],
    dataset: Annotated[
        DatasetName, typer.Option(metavar="DATASET", help="Data set of a DIR without a name.")
    ] = DatasetName.msvd,
    picker: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model whose PickNet picks.", show_default="msvd, shipped")
    ] = None,
    device: Annotated[DeviceName, typer.Option(help="Device to caption on.")] = DeviceName.auto,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of features. Default: feature-cache beside the first run folder.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare captioning systems on their validation clips, from their own frames and from PickNet's.

    \b
    Examples:
      picknet bench runs/mean runs/ta --data msvd=msvd/ --out field/
    """
    import dataclasses

    from picknet.data.split import data_folders
    from picknet.files import check_folder
    from picknet.study import field

    folders = data_folders(data, dataset.value)
    check_folder(out)
    with _train_extra():
        from picknet.training.bench import Bench
        from picknet.training.recipe import find_device
        from picknet.training.runs import commit

        target = find_device(device.value)
        cache_folder = cache or runs[0].parent / "feature-cache"
        described, references = Bench(folders, cache_folder, target, picker).describe(
            runs, on_run=lambda run: note(f"captioning with {run}")
        )
    facts = {
        "command": shlex.join(["picknet", *sys.argv[1:]]),
        "commit": commit() or "unknown",
        "device": str(target),
        "dataset": folders[0].dataset,
    }
    rows = field.write([dataclasses.asdict(one) for one in described], references, out, facts=facts)
    print(field.tables(rows, folders[0].dataset))


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadUsage(f"{path}: not valid JSON ({error})") from error
    if not isinstance(card, dict):
        raise BadUsage(f"{path}: not a JSON object, such as {{\"licence\": \"Apache-2.0\"}}")
    return card
