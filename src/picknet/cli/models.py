"""`picknet info`."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from picknet.cli.arguments import OUTPUT, Out, Quiet
from picknet.cli.output import check_out, format_for, opened
from picknet.cli.terminal import shown


class InfoFormat(StrEnum):
    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"


SUFFIXES: dict[str, tuple[InfoFormat, ...]] = {
    ".txt": (InfoFormat.text,),
    ".json": (InfoFormat.json, InfoFormat.jsonl),
    ".jsonl": (InfoFormat.jsonl, InfoFormat.json),
    ".csv": (InfoFormat.csv,),
    ".md": (InfoFormat.markdown,),
}


def info(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A shipped model's name, a model folder or a run folder.",
            show_default="msvd, shipped",
        ),
    ] = None,
    format: Annotated[
        InfoFormat | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT", show_default="text, or by the suffix of --out",
            help="text, json or jsonl, csv, or markdown: the model card.", rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Show a model's size, training, scores and limits."""
    format = format_for(out, format, SUFFIXES, default=InfoFormat.text)
    check_out(out)

    from picknet.captioner import load
    from picknet.config import flat
    from picknet.model import card
    from picknet.timeline import csv_row

    captioner = load(model)
    runtime, settings = captioner.runtime, captioner.config
    manifest = runtime.parts.manifest
    _ = runtime.parts.weights_digest  # an error where it is not that of the manifest
    facts: dict[str, Any] = {
        "model": captioner.name,
        "folder": str(runtime.folder),
        "bytes": sum(path.stat().st_size for path in runtime.folder.iterdir() if path.is_file()),
        "manifest": manifest is not None and sorted(manifest),
        "vocabulary": len(runtime.vocabulary),
        "styles": list(runtime.vocabulary.styles),
        "num_frames": settings.video.num_frames,
        "cnn": settings.model.cnn,
        "image_size": settings.model.image_size,
        "beam": settings.beam,
        "card": runtime.card,
    }
    with opened(out) as write:
        if format is InfoFormat.text:
            width = shutil.get_terminal_size().columns if out is None and sys.stdout.isatty() else None
            write("".join(f"{line}\n" for line in _page(facts, width=width)))
        elif format is InfoFormat.markdown:
            lines = card.page(runtime.card, settings, runtime.vocabulary).split("\n")
            write("\n".join(map(shown, lines)))
        elif format is InfoFormat.csv:
            rows = [("name", "value"), *flat(facts).items()]
            write("".join(csv_row(*map(_cell, row)) for row in rows))
        else:
            write(json.dumps(facts) + "\n")


def _cell(value: object) -> object:
    """What a cell of CSV says: lists, true and false as in JSON."""
    if isinstance(value, list | bool):
        return json.dumps(value)
    return shown(value) if isinstance(value, str) else value


def _page(facts: Mapping[str, Any], *, width: int | None) -> Iterator[str]:
    """The facts for people, one section after another. width: columns of the terminal; None: lines are not wrapped."""
    from picknet.model.card import BULLET, sections

    description = facts["card"].get("description")
    yield shown(f"{facts['model']}: {description}" if description else facts["model"])
    model = [
        ("folder", facts["folder"]),
        ("size", f"{facts['bytes'] / 1e6:.1f} MB ({facts['bytes']:,} bytes)"),
        ("manifest", _manifest(facts["manifest"])),
        ("words", f"{facts['vocabulary']:,}"),
        ("styles", ", ".join(["its own", *facts["styles"]])),
        ("sampled frames", f"{facts['num_frames']} of a video"),
        ("CNN", f"{facts['cnn']}, {facts['image_size']} x {facts['image_size']} pixels"),
        ("beam", str(facts["beam"])),
    ]
    page = {"Model": model, **sections(facts["card"])}
    indent = 2 + max(len(name) for rows in page.values() for name, _ in rows)
    for title, rows in page.items():
        if rows:
            yield ""
            yield shown(title)
        for name, value in rows:
            hang = 2 if name == BULLET else indent
            line = shown(f"  {name:{hang}}{value}")  # a card may hold what a terminal would obey
            yield from textwrap.wrap(line, width, subsequent_indent=" " * (hang + 2)) if width else [line]


def _manifest(listed: "list[str] | bool") -> str:
    """What is known of the origin of the parts."""
    from picknet.model.folder import PARTS

    if not isinstance(listed, list):
        return "none: nothing says whether the parts are those that were written"
    if missing := [part for part in PARTS if part not in listed]:
        return f"does not list {', '.join(missing)}; all others are as they were written"
    return "all parts are as they were written"
