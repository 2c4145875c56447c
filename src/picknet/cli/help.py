"""Help pages with options and commands under headings, and `picknet VIDEO` as short for `picknet caption VIDEO`.

Typer groups options by `rich_help_panel`, but only where Rich draws boxes around them, which doubles the start-up time.
These classes print the same groups as plain text.
"""

import difflib
import glob
import os
import re
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

DEFAULT_COMMAND = "caption"

# Typer 0.16 and later bring their own copy of Click, so its classes are found by way of Typer's.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])


class Command(TyperCommand):
    """A command whose options stand under the headings that they name as `rich_help_panel`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """VIDEO... where Typer writes {VIDEO}..."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                title, record = "Arguments", (record[0].partition(" <")[0], record[1].removesuffix("  [required]"))
            else:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
            sections.setdefault(title, []).append((record[0], _tidy(record[1])))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class Group(TyperGroup):
    """The commands under the headings that they name as `rich_help_panel`; videos without a command are captioned."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [DEFAULT_COMMAND, *args] if self._is_short(ctx, args) else args)

    def _is_short(self, ctx: Any, args: list[str]) -> bool:
        """Whether the command is missing: the first word is a source, or an option that only a command takes."""
        if not args or args[0] in self.commands:
            return False
        first = args[0]
        if first.startswith("-") and first not in ("-", "--"):
            known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
            return first.partition("=")[0] not in known and not any(word in self.commands for word in args[1:])
        return first in ("-", "--") or may_be_source(first)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = difflib.get_close_matches(args[0], self.commands, n=1)
        ending = f"; did you mean {meant[0]}?" if meant else ""
        raise UsageError(f"{args[0] or repr(args[0])}: no such command or file{ending}", ctx=ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, Any]]] = {}
        for name in self.list_commands(ctx):
            command = cast("Any", self.get_command(ctx, name))
            sections.setdefault(command.rich_help_panel or "Commands", []).append((name, command))
        width = max(map(len, self.commands))
        for title, commands in sections.items():
            with formatter.section(title):
                # A long summary is wrapped, not cut.
                formatter.write_dl([(f"{name:{width}}", one.get_short_help_str(1000)) for name, one in commands])


def _tidy(text: str) -> str:
    """[default: the model's] where Typer writes [default: (the model's); x>=1]"""
    text = re.sub(r"; x>=[\d.]+(?=\])|  \[x>=[\d.]+\]", "", text)
    return re.sub(r"\[default: \((.*?)\)(?=[\];])", r"[default: \1", text)


def may_be_source(word: str) -> bool:
    """Whether a word is a file, folder, pattern or address rather than a command, or the typo of one.

    What has a dot or a slash is taken for a file, so that the message about a missing one is that of a missing file.
    """
    return os.path.lexists(word) or "://" in word or glob.has_magic(word) or any(char in word for char in "./\\")
