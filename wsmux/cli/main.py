"""Parse the command line and run one subcommand.

stdout is for data, stderr for messages. Exit status: 0 success, 1 failure, 2 wrong usage, 130 after
Ctrl-C, 143 after SIGTERM. Each subcommand is a module with ``EPILOG``, ``add_arguments`` and
``run``, which imports what it needs when it runs; the module itself is imported when it is named.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType, ModuleType

from .. import __version__
from ..exceptions import WsmuxError
from .terminal import CommandError, sentence, talk

__all__ = ["guarded", "main"]

FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)

# Each is in the module of its name; the order is that of the help.
COMMANDS = (
    "serve",
    "serve-data",
    "tables",
    "ingest",
    "cat",
    "upload",
    "forward",
    "exec",
    "bridge",
    "doctor",
    "top",
    "inspect",
    "replay",
    "rpc",
    "relay",
    "cluster",
    "peer",
    "registrar",
    "twin",
    "demo",
    "bench",
)


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line, with these of its subcommands."""
    root = argparse.ArgumentParser(
        prog="wsmux", description="Many blocking byte streams over one WebSocket."
    )
    root.add_argument("--version", action="version", version=f"wsmux {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-v", "--verbose", action="count", default=0, help="log more; twice for everything"
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = _module(name)
        summary = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(
            name, help=summary, description=summary, parents=[common], epilog=module.EPILOG
        )
        module.add_arguments(command)
    return root


def _module(name: str) -> ModuleType:
    return import_module(f".{name.replace('-', '_')}", __package__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``argv``, by default the process's own arguments; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    # To import all subcommands takes as long as all else of the start; the help names each.
    names = [name for name in COMMANDS if words[:1] == [name]] or COMMANDS
    try:
        args = parser(names).parse_args(words)
    except SystemExit as error:  # argparse has printed the error
        return error.code if isinstance(error.code, int) else USAGE
    return guarded(f"wsmux {args.command}", _module(args.command).run, args)


def guarded(name: str, run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command under its name, print any failure, and return its exit status."""
    logging.basicConfig(
        stream=sys.stderr,
        level=LEVELS[min(args.verbose, len(LEVELS) - 1)],
        format="%(levelname)s %(message)s",
    )
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else FAILED
    except BrokenPipeError as error:
        if isinstance(error, WsmuxError):
            return _failed(name, error)
        _silence_stdout()
        return FAILED
    except (CommandError, WsmuxError, OSError) as error:
        return _interrupted(error) or _failed(name, error)
    return status


def _interrupted(error: BaseException) -> int | None:
    """Return the status of the signal that ended the command, if it failed because of that.

    What Ctrl-C interrupts in the middle of a change ends its connection, and then leaving the
    blocks of the connection and its streams may raise.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(cause, SystemExit) and cause.code == TERMINATED:
            return TERMINATED
        cause = cause.__context__
    return None


def _failed(name: str, error: Exception) -> int:
    talk(f"{name}: {sentence(error)}")
    return error.status if isinstance(error, CommandError) else FAILED


def _terminated(number: int, frame: FrameType | None) -> None:
    """Unwind as Ctrl-C does, so that servers and child processes are ended."""
    raise SystemExit(TERMINATED)


def _silence_stdout() -> None:
    """Keep the interpreter's final flush from failing if stdout is no longer read."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
