"""Parse the command line and run one subcommand.

stdout is for data, stderr for messages. Exit status: 0 success, 1 failure, 2 wrong usage, 130 after
Ctrl-C, 143 after SIGTERM. Each subcommand is a module with ``add_arguments`` and ``run``, which
imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from .. import __version__
from ..exceptions import WsmuxError
from . import (
    bench,
    bridge,
    cat,
    cluster,
    demo,
    doctor,
    exec,
    forward,
    ingest,
    inspect,
    peer,
    registrar,
    relay,
    replay,
    rpc,
    serve,
    serve_data,
    tables,
    top,
    twin,
    upload,
)
from .terminal import CommandError, sentence, talk

__all__ = ["guarded", "main"]

FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)

COMMANDS = {
    "serve": serve,
    "serve-data": serve_data,
    "tables": tables,
    "ingest": ingest,
    "cat": cat,
    "upload": upload,
    "forward": forward,
    "exec": exec,
    "bridge": bridge,
    "doctor": doctor,
    "top": top,
    "inspect": inspect,
    "replay": replay,
    "rpc": rpc,
    "relay": relay,
    "cluster": cluster,
    "peer": peer,
    "registrar": registrar,
    "twin": twin,
    "demo": demo,
    "bench": bench,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="wsmux", description="Many blocking byte streams over one WebSocket."
    )
    root.add_argument("--version", action="version", version=f"wsmux {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-v", "--verbose", action="count", default=0, help="log more; twice for everything"
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(
            name, help=summary, description=summary, parents=[common], epilog=module.EPILOG
        )
        module.add_arguments(command)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``argv``, by default the process's own arguments; return the exit status."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as error:  # argparse has printed the error
        return error.code if isinstance(error.code, int) else USAGE
    return guarded(f"wsmux {args.command}", COMMANDS[args.command].run, args)


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
