"""`picknet info`."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from picknet.cli.arguments import Out, OutputFormat, Quiet, ResultFormat
from picknet.cli.output import RESULT_SUFFIXES, check_out, format_for, opened

Rows = list[tuple[str, str]]
BULLET = "-"
"""The name of a row that is one of a list."""


def info(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A shipped model's name, a model folder or a run folder.",
            show_default="msvd, shipped",
        ),
    ] = None,
    format: OutputFormat = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Show a model's size, training and scores."""
    format = format_for(out, format, RESULT_SUFFIXES, default=ResultFormat.text)
    check_out(out)

    from picknet.captioner import load
    from picknet.config import flat
    from picknet.timeline import csv_row

    captioner = load(model)
    runtime, settings = captioner.runtime, captioner.config
    facts: dict[str, Any] = {
        "model": captioner.name,
        "folder": str(runtime.folder),
        "bytes": sum(path.stat().st_size for path in runtime.folder.iterdir() if path.is_file()),
        "vocabulary": len(runtime.vocabulary),
        "styles": list(runtime.vocabulary.styles),
        "num_frames": settings.video.num_frames,
        "cnn": settings.model.cnn,
        "image_size": settings.model.image_size,
        "beam": settings.beam,
        "card": runtime.card,
    }
    with opened(out) as write:
        if format is ResultFormat.text:
            width = shutil.get_terminal_size().columns if out is None and sys.stdout.isatty() else None
            write("".join(f"{line}\n" for line in _page(facts, width=width)))
        elif format is ResultFormat.csv:
            rows = [("name", "value"), *flat(facts).items()]
            write("".join(csv_row(*row) for row in rows))
        else:
            write(json.dumps(facts) + "\n")


def _page(facts: Mapping[str, Any], *, width: int | None) -> Iterator[str]:
    """The facts for people, one section after another. width: columns of the terminal; None: lines are not wrapped."""
    card = dict(facts["card"])
    description = card.pop("description", None)
    yield f"{facts['model']}: {description}" if description else facts["model"]
    sections: dict[str, Rows] = {
        "Model": [
            ("folder", facts["folder"]),
            ("size", f"{facts['bytes'] / 1e6:.1f} MB ({facts['bytes']:,} bytes)"),
            ("words", f"{facts['vocabulary']:,}"),
            ("styles", ", ".join(["its own", *facts["styles"]])),
            ("sampled frames", f"{facts['num_frames']} of a video"),
            ("CNN", f"{facts['cnn']}, {facts['image_size']} x {facts['image_size']} pixels"),
            ("beam", str(facts["beam"])),
            *(_rows("licence", card.pop("licence")) if "licence" in card else ()),
        ]
    }
    known = {
        "Training": ("trained_on", "recipe", "picker", "clips", "stages"),
        "Scores": ("scores",),
        "Known failures": ("known_failures",),
        "Versions": ("versions",),
    }
    for title, names in known.items():
        rows = [row for name in names if name in card for row in _rows(name, card.pop(name))]
        sections[title] = rows
        if title == "Scores":
            sections |= _confidences(card)
            card.pop("confidence", None)
    sections["More"] = [row for name, value in card.items() for row in _rows(name, value)]
    indent = 2 + max(len(name) for rows in sections.values() for name, _ in rows)
    for title, rows in sections.items():
        if rows:
            yield ""
            yield title
        for name, value in rows:
            hang = 2 if name == BULLET else indent
            line = f"  {name:{hang}}{value}"
            yield from textwrap.wrap(line, width, subsequent_indent=" " * (hang + 2)) if width else [line]


def _confidences(card: Mapping[str, Any]) -> dict[str, Rows]:
    """A section for each style that the model is calibrated for."""
    from picknet.model.confidence import entries
    from picknet.study.calibration import report

    return {
        f"Confidence ({name})" if name else "Confidence": report(entry) or _rows("confidence", entry)
        for name, entry in entries(card).items()
    }


def _rows(name: str, value: Any) -> Rows:
    """What a card says under a name, as names and values."""
    if name == "stages" and isinstance(value, dict):
        return [(stage, _stage(stage, facts)) for stage, facts in value.items()]
    if name == "clips" and isinstance(value, dict):
        return [(f"{split} clips", _clips(facts)) for split, facts in value.items()]
    if isinstance(value, dict):
        return [(_words(key), _text(one)) for key, one in value.items()]
    if isinstance(value, list):
        return [(BULLET, _text(one)) for one in value]
    return [(_words(name), _text(value))]


def _stage(stage: str, facts: Any) -> str:
    """Validation during training is greedy; the scores below it use a beam."""
    if not isinstance(facts, dict):
        return _text(facts)
    frames = "{} evenly spaced frames a clip" if stage == "supervision" else "{} picks a clip"
    labels = {"epoch": "best epoch {}", "val_cider": "validation CIDEr {} (greedy)", "val_picks": frames}
    return ", ".join(
        labels[name].format(value) if name in labels else f"{_words(name)} {value}" for name, value in facts.items()
    )


def _clips(facts: Any) -> str:
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), int) for name in ("used", "missing")):
        return _text(facts)
    return f"{facts['used']:,} used, {facts['missing']:,} missing"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
