"""What a training is to do, checked before anything is read or computed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from picknet.config import STAGES, BadConfig, Config, Stage, load_config
from picknet.data.split import DataFolder, data_folders
from picknet.model.folder import find_model
from picknet.training.folds import Fold
from picknet.training.runs import checkpoint, trained_epochs, trains_captioner

DataSource = str | os.PathLike[str] | DataFolder
"""A data folder: "msvd=DIR" names its data set, a path alone is a folder of one's own clips."""


@dataclass(frozen=True)
class TrainingPlan:
    config: Config
    data: tuple[DataFolder, ...]
    stages: tuple[Stage, ...]
    """The stages to run, in order; all of them have epochs."""
    start: Path | None
    """The model folder whose words and weights the training starts from."""
    policy_alone: bool
    """Whether the captioner of that model stays as it is, with its words; not where a stage before has trained it."""
    fold: Fold | None
    """The part of the training clips that takes the place of the validation split."""
    judges: tuple[str, ...]
    """What rewards PickNet, see `JudgeRun.read`."""

    @property
    def origin(self) -> dict[str, str | None]:
        """What a run depends on besides its config, as stored with it."""
        return {
            "dataset": "+".join(part.dataset for part in self.data),
            "from": None if self.start is None else str(self.start),
            "fold": None if self.fold is None else str(self.fold),
            "judges": ", ".join(self.judges) or None,
        }


def make_plan(
    config: Config | str | os.PathLike[str] | None,
    *,
    data: DataSource | Sequence[DataSource],
    out: Path,
    settings: Sequence[str] = (),
    stages: Sequence[str] | None = None,
    start: str | os.PathLike[str] | None = None,
    fold: Fold | str | None = None,
    judges: Sequence[str | os.PathLike[str]] = (),
    resume: bool = False,
) -> TrainingPlan:
    """Find the settings, the data and the stages that the arguments of `train` ask for, and check that they fit."""
    start_folder = None if start is None else find_model(start)[1]
    found = _find_config(config, settings, start=start_folder, run=out if resume else None)
    fine_tunes = start is not None and config is None
    chosen = _find_stages(stages, found, fine_tunes=fine_tunes)
    # A captioner that is trained further learns probabilities of the words it knows; one that is not stays as it is.
    left_out = 0
    policy_alone = start_folder is not None and chosen == ("reinforcement",) and not (resume and trains_captioner(out))
    if start_folder and policy_alone:
        left_out = load_config(start_folder / "config.toml", ()).model.left_out
    plan = TrainingPlan(
        config=replace(found, model=replace(found.model, left_out=left_out)),
        data=_find_data(data),
        stages=chosen,
        start=start_folder,
        policy_alone=policy_alone,
        fold=Fold.parse(fold) if isinstance(fold, str) else fold,
        judges=tuple(os.fspath(judge) for judge in judges),
    )
    # In a run that was rewarded by judges they belong to the command that is repeated.
    if judges and "reinforcement" not in chosen and not (resume and trained_epochs(out, "reinforcement")):
        raise BadConfig(
            f"--judge {plan.judges[0]}: rewards PickNet in reinforcement, which is not among the stages to run "
            f"({', '.join(chosen)}); leave it out, or add --stage reinforcement"
        )
    trained = start or "supervision" in plan.stages or checkpoint(out, "supervision", "best").exists()
    rewarded = [stage for stage in ("reinforcement", "adaptation") if stage in plan.stages]
    if rewarded and not trained:
        raise BadConfig(
            f"{rewarded[0]} needs a trained captioner to reward picks: start from a model (--from), or run supervision "
            f"first (--stage supervision, then --stage {rewarded[0]} --resume)"
        )
    return plan


def _find_config(
    config: Config | str | os.PathLike[str] | None,
    settings: Sequence[str],
    *,
    start: Path | None,
    run: Path | None,
) -> Config:
    """The given config, or that of the run to resume, or that of the model to start from."""
    if isinstance(config, Config):
        if settings:
            raise BadConfig("settings are applied to a config file; load_config(path, settings) gives a Config")
        return config
    folder = run or start
    path = Path(config) if config else folder / "config.toml" if folder else None
    if path is None:
        raise BadConfig("no settings: name a config file, such as configs/msvd.toml, or a model to start from (--from)")
    return load_config(path, settings)


def _find_data(data: DataSource | Sequence[DataSource]) -> tuple[DataFolder, ...]:
    sources = [data] if isinstance(data, str | os.PathLike | DataFolder) else list(data)
    if not sources:
        raise BadConfig("no data: name at least one data folder")
    if all(isinstance(source, DataFolder) for source in sources):
        return tuple(cast(list[DataFolder], sources))
    texts = [f"{one.dataset}={one.folder}" if isinstance(one, DataFolder) else os.fspath(one) for one in sources]
    return data_folders(texts, "folder")


def _find_stages(stages: Sequence[str] | None, config: Config, *, fine_tunes: bool) -> tuple[Stage, ...]:
    """The named stages, all of which must have epochs; by default those that have.

    Fine-tuning with a model's own settings by default runs one stage: adaptation, or supervision if the model was
    trained without adaptation.
    """
    epochs = {stage: getattr(config, stage).epochs for stage in STAGES}
    if stages is None:
        default = [stage for stage in STAGES if epochs[stage]]
        if not default:
            names = ", ".join(f"{stage}.epochs" for stage in STAGES)
            raise BadConfig(f"no stage has epochs, so nothing would be trained; set at least one of {names}")
        if not fine_tunes:
            return tuple(default)
        of_captioner: list[Stage] = [stage for stage in ("adaptation", "supervision") if epochs[stage]]
        if not of_captioner:
            raise BadConfig("only reinforcement has epochs; to train the picker alone, add --stage reinforcement")
        return (of_captioner[0],)
    if not stages:
        raise BadConfig(f"no stage is named, so nothing would be trained (possible: {', '.join(STAGES)})")
    for stage in stages:
        if stage not in STAGES:
            raise BadConfig(f"--stage {stage}: no such stage (possible: {', '.join(STAGES)})")
        if not epochs[stage]:
            with_epochs = ", ".join(f"{stage} ({count})" for stage, count in epochs.items() if count) or "none"
            raise BadConfig(
                f"--stage {stage}: {stage}.epochs is 0, so nothing would be trained; set it, as in "
                f"--set {stage}.epochs=10 (stages with epochs: {with_epochs})"
            )
    return tuple(stage for stage in STAGES if stage in stages)
