"""`picknet train`, `picknet export` and `picknet report`."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.arguments import BadUsage, DatasetName
from picknet.cli.terminal import many, progress_bars, say
from picknet.errors import PicknetError

if TYPE_CHECKING:
    from rich.progress import Progress

    from picknet.config import Config


class MissingExtra(PicknetError):
    """A part of picknet that is installed on demand."""


class StageName(StrEnum):
    supervision = "supervision"
    reinforcement = "reinforcement"
    adaptation = "adaptation"
    refinement = "refinement"


class DeviceName(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders; those that differ by the seed alone are averaged.")
    ],
    out: Annotated[Path, typer.Option(help="A folder for report.md and the training curves.")],
) -> None:
    """Tell what training runs did: what each stage added, curves, cost."""
    from picknet.study import report

    report.write([report.read_run(run) for run in runs], out)
    print(out / "report.md")


def train(
    data: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]DIR", help="A data folder; of several, each after its data set's name: coco=DIR."),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; the trained model will be its model/.")],
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The settings, as in configs/msvd.toml.")
    ] = None,
    dataset: Annotated[
        DatasetName | None,
        typer.Option(help="The data set of a DIR without a name: msvd; with --from and no config: folder."),
    ] = None,
    stage: Annotated[
        list[StageName] | None,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help=f"Only some of {', '.join(StageName)}; with --from and no config: one of them.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Another setting, as in reward.penalty=-2.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help="Go on from this model, with its words.")] = None,
    fold: Annotated[
        str | None, typer.Option(metavar="K/N", help="Validate on the K-th of N parts of the training clips.")
    ] = None,
    judge: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Runs of folds, which reward PickNet on the clips they were validated on."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    device: Annotated[DeviceName, typer.Option(help="Where to train.")] = DeviceName.auto,
    cache: Annotated[Path | None, typer.Option(help="Where features are kept; by default beside the run.")] = None,
) -> None:
    """Train the paper's three stages, and refinement where the config asks for it."""
    from picknet.captioner import find_model
    from picknet.data.split import data_folders

    start_folder = find_model(start)[1] if start else None
    read = _read_config(config, settings or [], start=start_folder, run=out if resume else None)
    default = DatasetName.folder if start and not config else DatasetName.msvd
    folders = data_folders(data, (dataset or default).value)
    with _train_extra(), _TrainingWatch() as watch:
        from picknet.training import recipe as training

        model = training.train(
            read,
            data=folders,
            out=out,
            stages=tuple(name.value for name in stage or (_fine_tuning(read) if start and not config else StageName)),
            start=start_folder,
            fold=training.Fold.parse(fold) if fold else None,
            judges=judge or (),
            resume=resume,
            device=device.value,
            cache=cache,
            report=watch.report,
            seen=watch.seen,
            note=say,
            command=shlex.join(["picknet", *sys.argv[1:]]),
        )
    print(f"{model}: trained; try picknet caption VIDEO --model {out}")


def _read_config(path: Path | None, settings: Sequence[str], *, start: Path | None, run: Path | None) -> "Config":
    """The config named, or else the one of the run to resume or of the model to go on from."""
    from picknet.config import load_config

    if run and not path:
        path = run / "config.toml"
    elif start and not path:
        path = start / "config.toml"
    if path is None:
        raise BadUsage("which settings? Name a config file, as in configs/msvd.toml, or a model to go on from: --from")
    return load_config(path, settings)


def _fine_tuning(config: "Config") -> tuple[StageName]:
    """The stage in which a trained model goes on: adaptation, or supervision where the model knew no adaptation."""
    return (StageName.adaptation if config.adaptation.epochs else StageName.supervision,)


class _TrainingWatch:
    """What a training reports: a bar for each stage where somebody watches, a line for each epoch in a file."""

    def __init__(self) -> None:
        self._progress: Progress | None = progress_bars("{task.fields[facts]}") if sys.stderr.isatty() else None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "_TrainingWatch":
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def report(self, stage: str, done: int, total: int, facts: dict[str, float]) -> None:
        told = {name: f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items()}
        chief = [told[name] for name in ("loss", "reward", "picks", "val_cider", "best_epoch") if name in told]
        self._move(stage, done, total, ", ".join(chief))
        if not sys.stdout.isatty():
            print(f"{stage} {done}/{total}: {', '.join(told.values())}", flush=True)

    def seen(self, split: str, done: int, total: int) -> None:
        self._move(f"looking at {split}", done, total, "")
        if done == total and not sys.stdout.isatty():
            print(f"{split}: {many(total, 'clip')} looked at", flush=True)

    def _move(self, name: str, done: int, total: int, told: str) -> None:
        if self._progress is None:
            return
        if name not in self._tasks:  # a resumed stage begins in its middle
            self._tasks[name] = self._progress.add_task(name, total=total, completed=done - 1, facts=told)
        self._progress.update(self._tasks[name], completed=done, facts=told)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    card: Annotated[
        Path | None, typer.Option(help="A JSON file of more facts for people (licence, scores), laid over card.json.")
    ] = None,
) -> None:
    """Write a run's best model as a model folder."""
    from picknet.files import write_text

    more = _read_card(card) if card else {}
    with _train_extra():
        from picknet.training import recipe as training

        training.export_run(run, out)
    if more:
        written = json.loads((out / "card.json").read_text(encoding="utf-8"))
        write_text(out / "card.json", json.dumps(written | more, indent=2, ensure_ascii=False) + "\n")
    print(out)


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadUsage(f"{path}: is not JSON ({error})") from error
    if not isinstance(card, dict):
        raise BadUsage(f"{path}: holds no JSON object, as {{\"licence\": \"Apache-2.0\"}} is one")
    return card


@contextlib.contextmanager
def _train_extra() -> Iterator[None]:
    """Around what needs the `train` extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("picknet"):
            raise
        missing = f"training needs {error.name}, which is not installed"
        raise MissingExtra(f'{missing}; pip install "picknet[train]"') from error
