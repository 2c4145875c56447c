"""The `picknet` command: parse, call, print.

Each command imports what it needs when it runs, so that `picknet --help` answers at once. Results go to standard
output, everything else to standard error. A failure is one line and an exit code: 1, or 2 for wrong usage and settings,
130 for Ctrl-C, 143 for SIGTERM.
"""

import codecs
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

from picknet.cli.arguments import BadUsage
from picknet.cli.batches import batch
from picknet.cli.captions import caption
from picknet.cli.evaluations import calibrate, compare, evaluate
from picknet.cli.frames import pick
from picknet.cli.help import Command, Group, UsageError
from picknet.cli.models import info
from picknet.cli.serving import serve
from picknet.cli.streams import stream
from picknet.cli.terminal import say
from picknet.cli.timelines import timeline
from picknet.cli.trainings import bench, export, report, train
from picknet.errors import PicknetError, with_value

NO_MEMORY = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
"""What errors of Python and of libraries say where memory is missing, beside those that are a `MemoryError`."""
HEARD_SECONDS = 1.0
"""After SIGTERM, how often to look whether the stack unwinds."""
COMPLETION_VARIABLE = "_PICKNET_COMPLETE"
"""Set by the shell's completion script, as Typer writes it."""

app = typer.Typer(
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would double the time that it takes
    subcommand_metavar="COMMAND ...",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Describe a video from the few frames that matter.\n\n"
    "`picknet VIDEO` is short for `picknet caption VIDEO`; `picknet COMMAND --help` explains a command.",
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Describe videos": (caption, timeline, stream, pick, batch, serve),
    "Models": (info, train, export, report),
    "Measure models": (evaluate, compare, calibrate, bench),
}
for _heading, _commands in COMMANDS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_heading)(_command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script. Every failure becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("picknet", _for_programs)
        sys.stdout.reconfigure(errors="backslashreplace" if sys.stdout.isatty() else "picknet")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _ended_by_sigterm():
            code = _run(given or ["--help"])
            print(end="", flush=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would end Python with a traceback
        code = _failed("interrupted", code=130)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "picknet"
        if problems := getattr(error.__cause__, "errors", None):  # Typer has Pydantic check the values of options
            error.message = with_value(problems()[0])
        message = " ".join(error.format_message().split()).rstrip(".")
        if file := next((one for one in given if one.startswith("-") and os.path.exists(one)), None):
            message = f"{file} begins with a dash, so it is taken for options: write ./{file}"
        code = _failed(f"{message} (see {command} --help)", code=2)
    except PicknetError as error:
        message = str(error)
        if message.startswith("min_confidence is "):  # the name of the argument
            message = message.replace("min_confidence is", "--min-confidence", 1)
        code = _failed(message, code=_exit_code(error))
    except (MemoryError, ImportError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in NO_MEMORY):
            raise
        code = _failed("not enough memory", code=1)
    except OSError as error:
        # Files are written by `files.written_whole`, which names them; an error without a name is standard output's.
        if not isinstance(error, BrokenPipeError):
            say(f"{error.filename or 'standard output'}: {error.strerror or error}")
        with contextlib.suppress(OSError):  # or the interpreter would fail again when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _for_programs(error: UnicodeError) -> tuple[str | bytes, int]:
    """What cannot be encoded: of a file name its bytes as they are, anything else as an escape."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


def _run(arguments: list[str]) -> int:
    """What `app(arguments)` does, except that Ctrl-C is passed on, where Typer would end without a message."""
    command: Any = typer.main.get_command(app)
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from typer.completion import shell_complete

        return shell_complete(command, {}, "picknet", COMPLETION_VARIABLE, instruction)
    try:
        with command.make_context("picknet", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _is_unwinding() -> bool:
    """Whether what is being done now leaves files in order because the process ends."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, SystemExit):
        error = error.__context__
    return error is not None


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that temporary files go and worker processes end with this one.

    PyAV loses an exception that is raised while it makes an error of its own, so it is raised again until heard.
    """
    can_repeat = hasattr(signal, "setitimer")

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if can_repeat:
            signal.signal(signal.SIGALRM, end)
            signal.setitimer(signal.ITIMER_REAL, HEARD_SECONDS)
        if not _is_unwinding():
            sys.exit(143)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if can_repeat:
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, before)


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
