"""The `picknet` command: parse, call, print.

What a command needs is imported inside it, so that `picknet --help` answers at once. Results go to standard output,
everything else to standard error; whatever fails ends as one line and an exit code: 1, 2 for usage and settings, 130
for Ctrl-C, 143 for a stream that is told to end by SIGTERM.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn, cast

import typer

from picknet.cli.arguments import BadUsage
from picknet.cli.captions import caption, info
from picknet.cli.evaluations import calibrate, compare, evaluate
from picknet.cli.frames import pick
from picknet.cli.streams import stream
from picknet.cli.terminal import say
from picknet.cli.timelines import timeline
from picknet.cli.trainings import export, report, train
from picknet.errors import PicknetError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take half of the time that it takes
    help="Describe a video from the few frames that matter.",
)
for command in (caption, pick, stream, timeline, evaluate, calibrate, compare, report, train, export, info):
    app.command()(command)

# Click's own class, wherever this version of Typer keeps its Click.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script. Every failure becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may hold what the terminal cannot show
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given or ["--help"])
        print(end="", flush=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would end Python with a traceback
        code = _failed("interrupted", code=130)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "picknet"
        message = " ".join(error.format_message().split()).rstrip(".")
        code = _failed(f"{message} (see {command} --help)", code=2)
    except PicknetError as error:
        code = _failed(str(error), code=_exit_code(error))
    except OSError as error:
        # Files are written by `files.written_whole`, which names them; what has no name is standard output.
        if not isinstance(error, BrokenPipeError):
            say(f"{error.filename or 'standard output'}: {error.strerror or error}")
        with contextlib.suppress(OSError):  # or the interpreter would fail again when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """What `app(arguments)` does, but for Ctrl-C, on which Typer would end without a word."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("picknet", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _exit_code(error: PicknetError) -> int:
    from picknet.config import BadConfig

    return 2 if isinstance(error, BadUsage | BadConfig) else 1


def _failed(message: str, *, code: int) -> int:
    say(message)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"picknet {version('picknet')}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...
