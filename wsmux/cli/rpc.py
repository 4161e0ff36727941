"""Call procedures of River servers, and fetch their schemas."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

from . import rpc_call, rpc_codegen, rpc_schema

EPILOG = "See wsmux rpc ACTION --help for each action."

ACTIONS = {"call": rpc_call, "schema": rpc_schema, "codegen": rpc_codegen}


class _Parser(argparse.ArgumentParser):
    """Accept options anywhere between arguments; argparse before 3.12.7 loses an optional one."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; the method called here calls this one again for each of its two passes."""
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``wsmux rpc``."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=_Parser
    )
    for name, module in ACTIONS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        action = actions.add_parser(name, help=summary, description=summary, epilog=module.EPILOG)
        # Without a default, which would override the option given before the action.
        action.add_argument(
            "-v", "--verbose", action="count", default=argparse.SUPPRESS, help="log more"
        )
        module.add_arguments(action)


def run(args: argparse.Namespace) -> int:
    """Run one action; its output is UTF-8, like JSON and Python sources."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    status: int = ACTIONS[args.action].run(args)
    return status
