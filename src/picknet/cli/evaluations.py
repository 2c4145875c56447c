"""`picknet evaluate`, `picknet compare` and `picknet calibrate`.

Files are written before anything is printed: `picknet compare … | head` ends with the first lines, and loses nothing.
"""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from picknet.cli.arguments import (
    DATA_HELP,
    FORMAT_HELP,
    MODEL,
    OUTPUT,
    PICKING,
    BadUsage,
    Beam,
    Change,
    Data,
    DatasetName,
    Frames,
    K,
    Model,
    Out,
    OutputFormat,
    PickerName,
    Quiet,
    ResultFormat,
    SplitName,
    Style,
    check_numbers,
    chosen_picker,
)
from picknet.cli.output import RESULT_SUFFIXES, check_out, format_for, opened
from picknet.cli.terminal import many, note, progress

if TYPE_CHECKING:
    from picknet.data.split import Clip, Missing
    from picknet.show.sheet import Strip
    from picknet.study.evaluation import Evaluation, Example

NUM_EXAMPLES = 24
MISSING_SHOWN = 5
"""Missing clips that are printed by name."""

Dataset = Annotated[DatasetName, typer.Option(metavar="DATASET", help=f"One of {', '.join(DatasetName)}.")]
Clips = Annotated[SplitName, typer.Option("--split", metavar="SPLIT", help=f"One of {', '.join(SplitName)}.")]
FeatureFolder = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Keep CNN features for the next time.")
]


class PickerWithK(NamedTuple):
    """A picker to evaluate."""

    name: PickerName
    k: int | None = None
    """Its own; None: that of --k."""


def picker_with_k(text: str) -> PickerWithK:
    """`uniform`, or `uniform:4` for a k of its own."""
    name, colon, k = text.partition(":")
    if name not in list(PickerName):
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(PickerName)}.")
    if colon and not (k.isdecimal() and int(k)):
        raise typer.BadParameter(f"{text!r}: a number of picks comes after the colon, as in {name}:4.")
    return PickerWithK(PickerName(name), int(k) if colon else None)


def evaluate(
    data: Data,
    dataset: Dataset = DatasetName.msvd,
    split: Clips = SplitName.val,
    format: OutputFormat = None,
    out: Out = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all captions, and the missing clips with their reasons, as JSON.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    histograms: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the number of picks and their positions (needs matplotlib).",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw clips with their picks, captions and scores; --seed says which.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    num_examples: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of clips on --examples.", show_default="24", rich_help_panel=OUTPUT
        ),
    ] = None,
    quiet: Quiet = False,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
    picker: Annotated[
        list[PickerWithK] | None,
        typer.Option(
            metavar="PICKER", parser=picker_with_k, autocompletion=lambda: list(PickerName), show_default="picknet",
            help=f"One of {', '.join(PickerName)}; repeat it to compare several in one table. uniform:4 is uniform "
            "with a --k of its own.", rich_help_panel=PICKING,
        ),
    ] = None,
    k: K = None,
    change: Change = None,
    frames: Frames = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of random pickers, of the bootstrap and of --examples.")
    ] = 0,
) -> None:  # fmt: skip
    """Score a model's captions against those written by people.

    \b
    Examples:
      picknet evaluate --data msvd/
      picknet evaluate --data msvd/ --picker picknet --picker picknet:4 --picker uniform:4 --picker all
      picknet evaluate --data msvd/ --format json --captions captions.json --histograms picks.png
      picknet evaluate --data msvd/ --examples examples.png --num-examples 24 --seed 0

    Scores are BLEU, ROUGE-L, METEOR and CIDEr, times 100, with 95 % intervals by bootstrap over clips.
    """
    pickers = _with_k(picker or [PickerWithK(PickerName.picknet)], k)
    check_numbers([name for name, _ in pickers], None, change)
    format = format_for(out, format, RESULT_SUFFIXES, default=ResultFormat.text)
    _check_pictures({"--histograms": histograms, "--examples": examples}, len(pickers))
    if num_examples and not examples:
        raise BadUsage(f"--num-examples {num_examples}: only applies to --examples FILE")

    import warnings

    from picknet.captioner import load
    from picknet.data.split import data_folders, load_split
    from picknet.files import check_folder
    from picknet.metrics import ONE_CLIP
    from picknet.study import evaluation
    from picknet.study.charts import require_matplotlib

    if histograms:
        require_matplotlib()
    check_out(out)
    for path in (captions, histograms, examples):
        if path:
            check_folder(path.parent)
    (found,) = data_folders([data], dataset.value)
    clips = load_split(found.folder, dataset=found.dataset, split=split.value)
    captioner = load(model, style=style)
    rows = []
    with progress("evaluating", len(clips.clips) * len(pickers)) as advance:
        for name, own_k in pickers:
            with warnings.catch_warnings(record=True) as warned:
                row = evaluation.evaluate(
                    captioner,
                    clips,
                    picker=chosen_picker(
                        name, k=own_k, change=change, frames=frames, seed=seed, captioner=lambda: captioner
                    ),
                    name=name.value,
                    beam=beam,
                    num_frames=frames,
                    seed=seed,
                    on_clip=lambda clip: advance(),
                )
            for warning in warned:
                note(str(warning.message))
            rows.append(row)
    if rows[0].num_videos == 1:
        note(ONE_CLIP)
    if captions:
        _write_captions(rows, captions)
    if histograms:
        from picknet.study.charts import pick_histograms, save

        save(pick_histograms(rows[0].pick_counts, rows[0].pick_positions, num_frames=rows[0].num_frames), histograms)
    if examples:
        from picknet.show.page import save as save_image
        from picknet.show.sheet import example_sheet

        drawn = evaluation.examples(rows[0], clips, count=num_examples or NUM_EXAMPLES, seed=seed)
        title = f"{len(drawn)} of {many(rows[0].num_videos, 'clip')} of {clips.dataset} {split}, drawn by seed {seed}"
        strips = [_strip(example, frames=rows[0].num_frames) for example in drawn]
        save_image(example_sheet(strips, title=f"{title} · {rows[0].label}"), examples)
    with opened(out) as write:
        if format is ResultFormat.text:
            write(_evaluation_text(rows, captions))
        elif format is ResultFormat.csv:
            write(_csv([row.to_row() for row in rows]))
        else:
            write("".join(json.dumps(row.to_dict()) + "\n" for row in rows))


def _with_k(pickers: Sequence[PickerWithK], k: int | None) -> list[PickerWithK]:
    """Each picker once, with its own k or that of --k."""
    for name, own in pickers:
        check_numbers([name], own, None)
    others = [name for name, own in pickers if not own]
    if k and not others:
        raise BadUsage(f"--k {k}: every --picker has a k of its own")
    check_numbers(others, k, None)
    return list(dict.fromkeys(PickerWithK(name, own or k) for name, own in pickers))


def _check_pictures(pictures: Mapping[str, Path | None], num_pickers: int) -> None:
    from picknet.show.page import FORMATS
    from picknet.study.charts import METADATA

    for option, path in pictures.items():
        formats = METADATA if option == "--histograms" else FORMATS
        if path and path.suffix.lower() not in formats:
            raise BadUsage(f"{option} {path}: a picture ends in {', '.join(formats)}")
        if path and num_pickers > 1:
            raise BadUsage(f"{option} {path}: one picture shows one picker, not {num_pickers}")


def _write_captions(rows: Sequence["Evaluation"], path: Path) -> None:
    from picknet.files import write_text

    content: list[dict[str, Any]] = []
    for row in rows:
        picker = {"picker": row.picker, "k": row.settings.get("k")}
        for clip, caption in row.captions.items():
            picks = [pick.to_dict() for pick in caption.picks]
            text = {"caption": caption.text, "confidence": caption.confidence}
            content.append({"clip": clip, **picker, **text, "picks": picks, "error": None})
        for missing in row.missing:
            nothing: dict[str, Any] = {"caption": None, "confidence": None, "picks": []}
            content.append({"clip": missing.name, **picker, **nothing, "error": missing.reason})
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _strip(example: "Example", *, frames: int) -> "Strip":
    """The picked frames of an example, read from its video again."""
    from picknet.model.confidence import written
    from picknet.show.page import Thumbnail
    from picknet.show.sheet import Strip
    from picknet.video.file import Video

    indices = {pick.index for pick in example.caption.picks}
    with Video(example.clip.path) as video:
        thumbnails = [Thumbnail.of(frame) for frame in video.sample_evenly(count=frames) if frame.index in indices]
    facts = f"{example.clip.name} · CIDEr {example.cider:.0f}"
    if example.caption.confidence is not None:
        facts += f" · confidence {written(example.caption.confidence)}"
    return Strip(thumbnails, example.caption.text, example.references, facts)


def _evaluation_text(rows: Sequence["Evaluation"], captions: Path | None) -> str:
    from picknet.study.evaluation import comparison_table, score_text

    first = rows[0]
    if len(rows) > 1:
        lines = [comparison_table(rows)]
    else:
        lines = [
            f"{first.label} on {first.dataset} {first.split}: {many(first.num_videos, 'clip')}, "
            f"{first.mean_picks:.1f} picks per clip, {first.seconds:.1f} s"
        ]
        titles = ("BLEU@1", "BLEU@2", "BLEU@3", "BLEU@4", "ROUGE-L", "METEOR", "CIDEr")
        for title, (metric, value) in zip(titles, dataclasses.asdict(first.scores).items(), strict=True):
            text = '– (needs pip install "picknet[meteor]")'
            text = text if value is None else score_text(value, first.intervals.get(metric))
            lines.append(f"{title:7} {text}")
    if first.intervals:
        lines.append("In brackets: 95 % interval, by bootstrap over clips.")
    # Every picker gets the same clips and reads the same ones.
    hint = f"in {captions}" if captions else "with --captions FILE"
    return "\n".join([*lines, *_missing_text(first.missing, hint)]) + "\n"


def _missing_text(missing: Sequence["Missing"], hint: str) -> list[str]:
    """The number of missing clips, the first of them, and where to find the others."""
    if not missing:
        return []
    lines = [f"missing {many(len(missing), 'clip')}:"]
    lines += [f"  {clip.name}: {clip.reason}" for clip in missing[:MISSING_SHOWN]]
    rest = len(missing) - MISSING_SHOWN
    return lines + ([f"  and {rest:,} more ({hint})"] if rest > 0 else [])


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    from picknet.timeline import csv_row

    return csv_row(*rows[0]) + "".join(csv_row(*(row[name] for name in rows[0])) for row in rows)


def calibrate(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A model folder or a run folder, whose card.json is updated.")
    ],
    data: Data,
    dataset: Dataset = DatasetName.msvd,
    split: Annotated[
        SplitName, typer.Option(metavar="SPLIT", help="Clips that the model was not trained on.")
    ] = SplitName.val,
    fold_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN", help="The run of a fold, for the training clips that it has not seen; repeat it for each.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            metavar="STYLE",
            help="Another of the model's styles, whose captions are compared with people's of the same clips.",
            show_default="that of the data set",
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DATASET=]DIR",
            help="First learn tags, the words to expect by the CNN's features, from a data folder's training clips or "
            "pictures; can be repeated, and folders count alike.",
        ),
    ] = None,
    forecast: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DATASET=]DIR",
            help="First learn to forecast how similar a caption will be to people's, and how well it matches what is "
            "seen: from a data folder's training clips with captions in the style that is calibrated (the forecast "
            "also from the clips of --data, each judged without it); repeat it for data folders in other styles.",
        ),
    ] = None,
    critic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DATASET=]DIR",
            help="First learn a critic, which tells by a caption's words and the decoder's states how good it will be: "
            "from captions that the model writes for a data folder's training clips or pictures, in the style that is "
            "calibrated; can be repeated.",
        ),
    ] = None,
    tags_weight: Annotated[
        float | None,
        typer.Option(
            metavar="W", min=0,
            help="How much the agreement with tags counts in the choice among the sentences that the search finds; "
            "by default as in the model's card, or 0.",
        ),
    ] = None,
    match_weight: Annotated[
        float | None,
        typer.Option(
            metavar="W", min=0,
            help="How much a sentence's match with what is seen, learned by --forecast, counts in the same choice; by "
            "default as in the model's card, or 0.",
        ),
    ] = None,
    cache: FeatureFolder = None,
    format: OutputFormat = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Fit a model's confidence in its captions.

    \b
    Examples:
      picknet calibrate --model runs/msvd --data msvd/
      picknet calibrate --model runs/msvd --data msvd/ --fold-model runs/fold1 --fold-model runs/fold2
      picknet calibrate --model runs/msvd --data msrvtt=msrvtt/ --split all
      picknet calibrate --model runs/msvd --data msrvtt=msrvtt/ --split all --style coco

    It is fitted for captions in the style of the data set: one of the model's other styles, or else its own. The
    weights are stored in the model's card.json, and picknet info shows how good they are.
    """
    format = format_for(out, format, RESULT_SUFFIXES, default=ResultFormat.text)

    from picknet.captioner import load
    from picknet.data.split import by_name, data_folders, load_split, only
    from picknet.files import written_whole
    from picknet.model.card import CARD, report, write_card
    from picknet.model.confidence import UNNAMED, own_entry, with_entry, without_tags
    from picknet.model.folder import SHIPPED, TAGS
    from picknet.model.manifest import renewed
    from picknet.study import calibration
    from picknet.study.critic_learning import learn_critic
    from picknet.study.tag_learning import learn

    ((name, folder),) = ((found.dataset, found.folder) for found in data_folders([data], dataset.value))
    captioner = load(model, style=style)
    if captioner.runtime.folder.parent == SHIPPED and captioner.name == captioner.runtime.folder.name:
        raise BadUsage(
            f"--model {captioner.name}: its calibration is a part of picknet and would be lost; copy the folder "
            f"{captioner.runtime.folder}, and calibrate the copy"
        )
    styles = captioner.runtime.vocabulary.styles
    if fold_model and name in styles:
        raise BadUsage(f"--fold-model: the clips of folds have the model's own style, but {name} is another")
    if style is None and name in styles:
        captioner = load(model, style=name)
    # A data set that is no style of the model is taken for one of its own style, whatever that is called in the card:
    # so the forecast, the match and the critic of its own style stay in use.
    own = own_entry(captioner.runtime.card, styles)
    calibrated = style or (own if name not in styles and own not in (None, UNNAMED) else name)
    parts = [(captioner, load_split(folder, dataset=name, split=split.value))]
    if fold_model:
        train = load_split(folder, dataset=name, split="train")
        parts += [(load(run, style=style), only(train, run)) for run in fold_model]
        by_name(part for _, part in parts)  # or a clip would be in several parts of the cross-validation
    card = captioner.runtime.folder / CARD
    with written_whole(card) as same:  # minutes before there is a new card, find out whether it can be written
        same.write_bytes(card.read_bytes())
    check_out(out)
    for option, asked in (("--tags-weight", tags_weight), ("--forecast", forecast), ("--critic", critic)):
        if asked and not tags and not captioner.runtime.tags:
            raise BadUsage(f"{option}: the model {captioner.name} has no tags; let it learn some with --tags")
    if match_weight and not forecast and not captioner.runtime.match(calibrated):
        raise BadUsage(f"--match-weight: the model {captioner.name} has no match for {calibrated}; add --forecast")
    if captioner.runtime.tags and not tags and not all(writer.runtime.tags for writer, _ in parts):
        raise BadUsage("--fold-model: the model has tags, which each fold's model has to learn as well: add --tags")
    if captioner.runtime.forecast(calibrated) and calibrated == name and not forecast:
        raise BadUsage(
            f"--data: the model has a forecast for {calibrated}, which may have been learned from these clips: add "
            "--forecast, so that each clip is judged by one that was not"
        )
    critics = [writer.runtime.critic(calibrated) for writer, _ in parts]
    if critics[0] and not critic and not all(critics):
        raise BadUsage(
            "--fold-model: the model has a critic, which each fold's model has to learn as well: add --critic"
        )

    def training_clips(folders: Sequence[str]) -> "list[tuple[Clip, ...]]":
        found = data_folders(folders, dataset.value)
        return [load_split(one.folder, dataset=one.dataset, split="train").clips for one in found]

    of_tags, of_forecast, of_critic = (training_clips(one or ()) for one in (tags, forecast, critic))
    held_back = sum(len(clips.clips) for _, clips in parts)
    total = len(parts) * sum(map(len, of_tags + of_forecast + of_critic)) + (held_back if forecast else 0)
    unaware = []
    with progress("learning words", total) as advance:
        for writer, clips in parts:
            writer.runtime.tags, forecasts = learn(
                writer,
                style=calibrated,
                tags=of_tags,
                forecast=of_forecast,
                held_back=clips.clips,
                cache=cache,
                on_clip=lambda clip: advance(),
            )
            unaware.append(forecasts)
            if critic and (known := writer.runtime.tags):
                judge = learn_critic(writer, of_critic, held_back=clips.clips, on_clip=lambda clip: advance())
                writer.runtime.tags = dataclasses.replace(known, critics={**known.critics, calibrated: judge})
    if tags_weight is None:
        tags_weight = captioner.describer.writer.tags_weight
    if match_weight is None:
        match_weight = captioner.describer.writer.match_weight if captioner.runtime.match(calibrated) else 0.0
    for writer, _ in parts:
        writer.describer.confidence = None  # the one before may need judges that this one does not have
        sentences = writer.describer.writer
        sentences.tags_weight, sentences.match_weight = tags_weight, match_weight
        sentences.forecast, sentences.match = writer.runtime.forecast(calibrated), writer.runtime.match(calibrated)
        sentences.critic = writer.runtime.critic(calibrated)
    samples, missing = [], []
    with progress("captioning", held_back) as advance:
        for (writer, clips), forecasts in zip(parts, unaware, strict=True):
            described, lost = calibration.describe(
                writer, clips, like=captioner, forecasts=forecasts, on_clip=lambda clip: advance()
            )
            samples.append(described)
            missing += lost
    fitted = calibration.calibrate(*samples, tags_weight=tags_weight, match_weight=match_weight)
    fitted_on = f"{many(len(samples[0]), 'clip')} of {name} {split.value}"
    if fold_model:
        unseen = many(sum(map(len, samples[1:])), "clip")
        fitted_on += f" and {unseen} of {name} train, those captioned by models of folds that had not seen them"
    if style and calibrated != name:
        fitted_on += f", whose captions people wrote in another style, that of {name}"
    facts = {"fitted_on": fitted_on, **fitted.to_dict()}
    runtime = captioner.runtime
    old = runtime.card
    if (tags or forecast or critic) and runtime.tags:
        if tags:
            old = without_tags(old)
            write_card(runtime.folder, old, runtime.config, runtime.vocabulary)
        with renewed(runtime.folder, TAGS):
            runtime.tags.save(runtime.folder / TAGS)
    write_card(runtime.folder, with_entry(old, calibrated, facts, styles=styles), runtime.config, runtime.vocabulary)
    result = {"model": captioner.name, "style": calibrated, **facts}
    with opened(out) as write:
        if format is ResultFormat.text:
            lines = [
                f"{captioner.name}: the confidence of captions in the style of {calibrated}",
                *(f"{label:20}{text}".rstrip() for label, text in report(facts)),
                *_missing_text(missing, "with --format json"),
                f"written to {card}",
            ]
            write("\n".join(lines) + "\n")
        elif format is ResultFormat.csv:
            flat = {key: value for key, value in result.items() if not isinstance(value, dict | list)}
            write(_csv([flat | {"num_missing": len(missing)}]))
        else:
            reasons = [{"clip": clip.name, "reason": clip.reason} for clip in missing]
            write(json.dumps(result | {"missing": reasons}) + "\n")


def compare(
    data: Annotated[str | None, typer.Option(metavar="[DATASET=]DIR", help=DATA_HELP)] = None,
    films: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead of clips: films with known events, made by benchmarks/films.py."),
    ] = None,
    dataset: Dataset = DatasetName.msvd,
    split: Clips = SplitName.val,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="A folder for tables and charts (needs matplotlib).",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    format: Annotated[
        ResultFormat,
        typer.Option("--format", "-f", metavar="FORMAT", help=FORMAT_HELP, rich_help_panel=OUTPUT),
    ] = ResultFormat.text,
    quiet: Quiet = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="As for evaluate; repeat it, each with its own --clips, for cross-validation.",
            show_default="msvd, shipped", rich_help_panel=MODEL,
        ),
    ] = None,
    clips: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="The model's clips: a text file with a name per line, or the run folder of a fold.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    beam: Annotated[
        int, typer.Option(metavar="N", min=1, help="Beam width; 1 is greedy, which is fast.", rich_help_panel=MODEL)
    ] = 1,
    subsets: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Random subsets of each size, to see how much the choice matters."),
    ] = 100,
    draws: Annotated[
        int, typer.Option(metavar="N", min=1, help="Draws of random pickers, which are averaged.")
    ] = 10,
    meteor: Annotated[
        bool, typer.Option("--meteor", help="Compute METEOR, too: a second per row of 100 clips.")
    ] = False,
    cache: FeatureFolder = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of random pickers and of the bootstrap.")] = 0,
) -> None:  # fmt: skip
    """Compare PickNet with plain pickers: CIDEr, or events found, against the number of picks.

    \b
    Examples:
      picknet compare --data msvd/ --out comparison/
      picknet compare --films films/ --out comparison/
    """
    if (data is None) == (films is None):
        raise BadUsage("compare needs either --data, for clips, or --films")
    if films is not None:
        if clips or len(model or ()) > 1:
            raise BadUsage("--films: one --model is compared, without --clips")
        _compare_films(films, out, format, model=model[0] if model else None, draws=draws, seed=seed)
        return
    assert data is not None
    models: list[str | None] = [*model] if model else [None]
    lists = clips or []
    if len(lists) != len(models) and (lists or len(models) > 1):
        counts = f"{many(len(models), 'model')} and {many(len(lists), 'list')} of clips"
        raise BadUsage(f"{counts}: each --model needs one --clips")

    import warnings

    from picknet.captioner import load
    from picknet.data.split import data_folders, load_split, only
    from picknet.files import check_folder
    from picknet.metrics import ONE_CLIP
    from picknet.study import comparison, comparison_page
    from picknet.study.charts import require_matplotlib

    if out:
        require_matplotlib()
        check_folder(out)
    (found,) = data_folders([data], dataset.value)
    whole = load_split(found.folder, dataset=found.dataset, split=split.value)
    parts = [only(whole, path) for path in lists] or [whole]
    judges = [(load(name), part) for name, part in zip(models, parts, strict=True)]
    num_clips = sum(len(part.clips) for part in parts)
    with progress("comparing", num_clips) as advance, warnings.catch_warnings(record=True) as warned:
        result = comparison.compare(
            judges,
            beam=beam,
            seed=seed,
            num_subsets=subsets,
            num_draws=draws,
            with_meteor=meteor,
            cache=cache,
            on_clip=lambda clip: advance(),
        )
    for warning in warned:
        note(str(warning.message))
    if len(result.clips) == 1:
        note(ONE_CLIP)
    if out:
        words = ["--data", str(found.folder), "--dataset", found.dataset, "--split", split]
        for number, name in enumerate(model or [""]):
            words += ["--model", name] if name else []
            words += ["--clips", str(lists[number])] if lists else []
        words += ["--beam", str(beam), "--subsets", str(subsets), "--draws", str(draws), "--seed", str(seed)]
        words += ["--meteor"] if meteor else []
        comparison_page.write(result, out, command=shlex.join(["picknet", "compare", *words]))
    if format is ResultFormat.text:
        hint = f"in {out / 'comparison.md'}" if out else "with --out DIR"
        print("\n".join([comparison_page.tables(result), *_missing_text(result.missing, hint)]), flush=True)
    else:
        _print_rows(format, comparison_page.rows(result))


def _compare_films(
    folder: Path, out: Path | None, format: ResultFormat, *, model: str | None, draws: int, seed: int
) -> None:
    from picknet.captioner import load
    from picknet.files import check_folder
    from picknet.study import finding
    from picknet.study.charts import require_matplotlib
    from picknet.study.films import read_films

    if out:
        require_matplotlib()
        check_folder(out)
    films = read_films(folder)
    with progress("comparing", len(films)) as advance:
        result = finding.compare_films(
            load(model), films, seed=seed, num_draws=draws, on_film=lambda film: advance()
        )
    if not result.with_detectors:
        note('without PySceneDetect, which is not installed; pip install "picknet[bench]"')
    if out:
        words = ["--films", str(folder), *(["--model", model] if model else [])]
        words += ["--draws", str(draws), "--seed", str(seed)]
        finding.write(result, out, command=shlex.join(["picknet", "compare", *words]))
    if format is ResultFormat.text:
        print(finding.tables(result), flush=True)
    else:
        _print_rows(format, finding.rows(result))


def _print_rows(format: ResultFormat, rows: Iterable[dict[str, Any]]) -> None:
    """Rows of a comparison as JSON lines or CSV."""
    from picknet.study.comparison_page import csv_table

    text = csv_table(rows) if format is ResultFormat.csv else "".join(json.dumps(row) + "\n" for row in rows)
    print(text, end="", flush=True)
