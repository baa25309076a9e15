"""The command `headrace`: finds the command, and turns every failure into one sentence and an exit code.

Exit codes: 0 for success; 1 for a failure (quiet where a pipe's reader has gone); 2 for a usage error; 130 for an
interruption. There is never a traceback, unless HEADRACE_DEBUG=1 asks for it. Imports no command before one is named.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextvars import copy_context
from typing import Annotated

import typer

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.garbage import spare_the_collector
from headrace.cli.commands import Root
from headrace.cli.options import CommandConfig, ContextName

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="headrace",
    help="A distributed log that speaks the Kafka protocol and keeps its history as open files.",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Each option may stand in the environment: --max of consume as HEADRACE_CONSUME_MAX.",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "HEADRACE"},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    command_config: CommandConfig = None,
    context_name: ContextName = None,
) -> None:
    """A distributed log that speaks the Kafka protocol and keeps its history as open files."""
    if command_config is not None or context_name is not None:
        from headrace.cli.command_config import remember

        remember(command_config, context_name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code. `arguments` default to the process's, of which this is all."""
    if arguments is not None:
        return _ran(arguments)
    spare_the_collector()
    try:
        return _ran(sys.argv[1:])
    finally:
        gc.freeze()  # the end of the interpreter would look through all that was imported, and free it piece by piece


def _ran(arguments: Sequence[str]) -> int:
    """The exit code."""
    given = list(arguments)
    try:  # in a context of its own: what one command remembers is not for the next in this process
        code = copy_context().run(app, given, prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as done:  # completion ends so
        return done.code if isinstance(done.code, int) else EXIT_FAILURE if done.code else 0
    except BrokenPipeError:
        return _on_broken_pipe()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("HEADRACE_DEBUG"):
            raise
        text, code = _explained(error)
        if text:
            _say(text)
    return code if isinstance(code, int) else 0


def _explained(error: BaseException) -> tuple[str, int]:
    """One sentence and the exit code for a failure. The sentence is empty where the help was shown instead."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _explained(error.exceptions[0])
    if isinstance(error, typer.Abort):
        return "aborted.", EXIT_FAILURE
    if isinstance(error, UsageError):
        return str(error), EXIT_USAGE
    if isinstance(error, HeadraceError):
        return str(error), EXIT_FAILURE
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # a wrong command line: typer's own exceptions
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "headrace"
        reason = format_message().replace("Value error, ", "").rstrip(".")  # pydantic's prefix to our own words
        if not reason:  # a group alone: typer has printed the group's help
            return "", EXIT_USAGE
        see = f"see '{where} --help'."
        return f"{reason[:-1]}? {see.capitalize()}" if reason.endswith("?") else f"{reason}; {see}", EXIT_USAGE
    if isinstance(error, OSError):
        subject = f"{error.filename}: " if error.filename else ""
        return f"{subject}{error.strerror or error}.", EXIT_FAILURE
    kind = type(error).__name__
    return f"This is a bug in Headrace ({kind}: {error}); HEADRACE_DEBUG=1 shows where, please report it.", EXIT_FAILURE


def _say(text: str) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.write(f"headrace: {' '.join(text.split())}\n")
    except OSError:
        _on_broken_pipe()


def _on_broken_pipe() -> int:
    """Prevent the interpreter's complaint when it flushes at its end. Returns the exit code."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
