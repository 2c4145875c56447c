"""`picknet evaluate`, `picknet calibrate` and `picknet compare`."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from picknet.cli.arguments import (
    BadUsage,
    Beam,
    Change,
    Data,
    DatasetName,
    Frames,
    K,
    Model,
    PickerName,
    ResultFormat,
    Seed,
    SplitName,
    Style,
    change_of,
    check_numbers,
    chosen_picker,
    k_of,
)
from picknet.cli.terminal import many, progress, say

if TYPE_CHECKING:
    from picknet.show.figures import Strip
    from picknet.study.evaluation import Evaluation, Example


def evaluate(
    data: Data,
    dataset: Annotated[DatasetName, typer.Option(help="How the captions are stored.")] = DatasetName.msvd,
    split: Annotated[SplitName, typer.Option(help="Which clips.")] = SplitName.val,
    model: Model = None,
    style: Style = None,
    picker: Annotated[
        list[PickerName] | None,
        typer.Option(
            metavar="PICKER",
            help=f"How frames are picked: {', '.join(PickerName)}; given several times, the paper's table.",
        ),
    ] = None,
    k: K = None,
    change: Change = None,
    beam: Beam = None,
    frames: Frames = None,
    seed: Seed = 0,
    format: Annotated[ResultFormat, typer.Option(help="json: one object a line.")] = ResultFormat.text,
    captions: Annotated[Path | None, typer.Option(help="Write the captions to this JSON file.")] = None,
    histograms: Annotated[Path | None, typer.Option(help="Draw how many frames were picked and where.")] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Draw 12 clips, evenly spread over the split, with picks and captions.")
    ] = None,
) -> None:
    """Score a model on a data set."""
    names = list(dict.fromkeys(picker or [PickerName.picknet]))
    check_numbers(names, k, change)
    pictures = {"--histograms": histograms, "--examples": examples}
    for option, path in pictures.items():
        if path and len(names) > 1:
            raise BadUsage(f"{option} {path}: one picture shows one picker, not {len(names)}")

    import warnings

    from picknet.captioner import load
    from picknet.data.split import load_split
    from picknet.files import write_text
    from picknet.show.figures import FORMATS, example_sheet, pick_histograms, save
    from picknet.study import evaluation
    from picknet.study.evaluation import examples as chosen

    for option, path in pictures.items():
        if path and path.suffix.lower() not in FORMATS:
            raise BadUsage(f"{option} {path}: a picture ends in {', '.join(FORMATS)}")
    clips = load_split(data, dataset=dataset.value, split=split.value)
    captioner = load(model, style=style)
    rows = []
    with progress("evaluating", len(clips.clips) * len(names)) as tick:
        for name in names:
            with warnings.catch_warnings(record=True) as warned:
                row = evaluation.evaluate(
                    captioner,
                    clips,
                    picker=chosen_picker(
                        name, k=k, change=change, frames=frames, seed=seed, captioner=lambda: captioner
                    ),
                    picker_name=name.value,
                    k=k_of(name, k),
                    change=change_of(change) if name is PickerName.scene else None,
                    beam=beam,
                    num_frames=frames,
                    tick=tick,
                )
            for warning in warned:
                say(str(warning.message))
            rows.append(row)
            if format is ResultFormat.json:
                print(json.dumps(row.as_json()), flush=True)
    if format is ResultFormat.text:
        print(evaluation.comparison_table(rows) if len(rows) > 1 else _result_text(rows[0]))
        # Every picker is given the same clips, and reads the same ones.
        if missing := rows[0].missing:
            print(f"\nmissing {many(len(missing), 'clip')}:")
            print("\n".join(f"  {clip.name}: {clip.reason}" for clip in missing), flush=True)
    if captions:
        written = [
            {"clip": clip, "picker": row.picker, "caption": said.text, "picks": [pick.to_dict() for pick in said.picks]}
            for row in rows
            for clip, said in row.captions.items()
        ]
        write_text(captions, json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    if histograms:
        counted = pick_histograms(rows[0].pick_counts, rows[0].pick_positions, num_frames=rows[0].num_frames)
        save(counted, histograms)
    if examples:
        strips = [_strip(example, frames=rows[0].num_frames) for example in chosen(rows[0], clips)]
        save(example_sheet(strips), examples)


def _strip(example: "Example", *, frames: int) -> "Strip":
    """The picked frames of an example, read from its video again."""
    from picknet.show.figures import Strip, Thumbnail
    from picknet.video.file import Video

    picked = {pick.index for pick in example.caption.picks}
    with Video(example.clip.path) as video:
        seen = [Thumbnail.of(frame) for frame in video.sample_evenly(count=frames) if frame.index in picked]
    note = f"{example.clip.name} · CIDEr {example.cider:.0f}"
    return Strip(seen, example.caption.text, example.reference, note)


def _result_text(row: "Evaluation") -> str:
    scores = row.scores
    lines = [
        f"{row.label} on {row.dataset} {row.split}: {many(row.num_videos, 'clip')}, "
        f"{row.mean_picks:.1f} picks a clip, {row.seconds:.1f} s"
    ]
    for name, value in (
        ("BLEU@1", scores.bleu1),
        ("BLEU@2", scores.bleu2),
        ("BLEU@3", scores.bleu3),
        ("BLEU@4", scores.bleu4),
        ("ROUGE-L", scores.rouge_l),
        ("METEOR", scores.meteor),
        ("CIDEr", scores.cider),
    ):
        shown = '    – (needs Java and pip install "picknet[meteor]")' if value is None else f"{value:5.1f}"
        lines.append(f"{name:7} {shown}")
    return "\n".join(lines)


def calibrate(
    model: Annotated[str, typer.Option(help="A model folder or a run folder; its card.json is written.")],
    data: Data,
    dataset: Annotated[DatasetName, typer.Option(help="How the captions are stored.")] = DatasetName.msvd,
    split: Annotated[SplitName, typer.Option(help="Which clips: some the model was not trained on.")] = SplitName.val,
    format: Annotated[ResultFormat, typer.Option(help="json: one object.")] = ResultFormat.text,
) -> None:
    """Fit a model's confidence in its captions."""
    from picknet.captioner import NothingToCaption, load
    from picknet.data.split import Missing, load_split
    from picknet.files import write_text, written_whole
    from picknet.model import confidence
    from picknet.video.file import UnreadableVideo

    clips = load_split(data, dataset=dataset.value, split=split.value)
    captioner = load(model)
    card = captioner.runtime.folder / "card.json"
    with written_whole(card) as same:  # minutes before the new card is there to be written, tell whether one can be
        same.write_bytes(card.read_bytes())
    said, missing = {}, list(clips.missing)
    with progress("captioning", len(clips.clips)) as tick:
        for clip in clips.clips:
            try:
                result = captioner.caption(clip.path)
            except (UnreadableVideo, NothingToCaption) as error:
                missing.append(Missing(clip.name, str(error)))
            else:
                said[clip.name] = (result.text, result.log_probability)
            tick()
    fitted = confidence.calibrate(said, {clip.name: clip.captions for clip in clips.clips if clip.name in said})
    kept = {**fitted.as_json(), "split": f"{dataset.value} {split.value}"}
    write_text(card, json.dumps(captioner.runtime.card | {"confidence": kept}, indent=2, ensure_ascii=False) + "\n")
    if format is ResultFormat.json:
        bins = [dataclasses.asdict(one) for one in fitted.bins]
        told = [{"clip": clip.name, "reason": clip.reason} for clip in missing]
        print(json.dumps({"model": captioner.name, **kept, "bins": bins, "missing": told}))
        return
    print(
        f"{captioner.name} on {kept['split']}: {many(fitted.num_clips, 'clip')}, "
        f"{fitted.num_good} of them with a good caption (CIDEr above {confidence.GOOD_CIDER})\n"
        f"AUC                         {fitted.auc:.3f}\n"
        f"expected calibration error  {fitted.ece:.3f}  ({confidence.NUM_FOLDS}-fold cross-validation, "
        f"{confidence.NUM_BINS} bins of equal width)"
    )
    for one in fitted.bins:
        print(f"  confidence {one.confidence:.2f}: {one.good:.2f} good of {many(one.num_clips, 'clip')}")
    if missing:
        print(f"missing {many(len(missing), 'clip')}:")
        print("\n".join(f"  {clip.name}: {clip.reason}" for clip in missing))
    print(f"written to {card}")


def compare(
    data: Data,
    dataset: Annotated[DatasetName, typer.Option(help="How the captions are stored.")] = DatasetName.msvd,
    split: Annotated[SplitName, typer.Option(help="Which clips.")] = SplitName.val,
    model: Annotated[
        list[str] | None,
        typer.Option(help="As for evaluate; given several times, each judges the clips of the --clips beside it."),
    ] = None,
    clips: Annotated[
        list[Path] | None,
        typer.Option(help="For each model, its clips: a text file with a name a line, or the run folder of a fold."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the tables and pictures.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width; greedy, as many captions are written.")] = 1,
    subsets: Annotated[
        int, typer.Option(min=0, help="Random subsets of each size that tell how much the choice matters; 0: none.")
    ] = 100,
    meteor: Annotated[bool, typer.Option("--meteor", help="METEOR too: 10 seconds for 100 captions.")] = False,
    cache: Annotated[Path | None, typer.Option(help="A folder that keeps features for the next time.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For pickers that draw, and the bootstrap.")] = 0,
) -> None:
    """Draw CIDEr against mean picks, for PickNet and its rivals."""
    models: list[str | None] = [*model] if model else [None]
    lists = clips or []
    if len(lists) != len(models) and (lists or len(models) > 1):
        told = f"{many(len(models), 'model')} and {many(len(lists), 'list')} of clips"
        raise BadUsage(f"{told}: each --model judges the clips of one --clips")

    import warnings

    from picknet.captioner import load
    from picknet.data.split import load_split, only
    from picknet.study import comparison

    whole = load_split(data, dataset=dataset.value, split=split.value)
    parts = [only(whole, path) for path in lists] or [whole]
    judges = [(load(name), part) for name, part in zip(models, parts, strict=True)]
    num_clips = sum(len(part.clips) for part in parts)
    with progress("comparing", num_clips) as tick, warnings.catch_warnings(record=True) as warned:
        result = comparison.compare(
            judges, beam=beam, seed=seed, num_subsets=subsets, with_meteor=meteor, cache=cache, tick=tick
        )
    for warning in warned:
        say(str(warning.message))
    print(comparison.markdown(result))
    if out:
        words = ["--data", str(data), "--dataset", dataset, "--split", split]
        for number, name in enumerate(model or [""]):
            words += ["--model", name] if name else []
            words += ["--clips", str(lists[number])] if lists else []
        words += ["--beam", str(beam), "--subsets", str(subsets), "--seed", str(seed)]
        comparison.write(result, out, command=shlex.join(["picknet", "compare", *words]))
