"""Keep a result as JSON, and read it again.

``SCHEMA`` counts the shapes that the file has had; a file of another one is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wsmux.cli.terminal import CommandError

from .measures import EVERY_MEASURE
from .peer import Peer
from .peers import find_peers
from .results import Pass, pass_as_json, pass_from_json
from .targets import Verdict, judge

__all__ = ["SCHEMA", "Result", "read"]

SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """Hold everything that was measured, and where."""

    environment: dict[str, Any]
    passes: Sequence[Pass]
    taken_at: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    def peers_of(self, run: Pass) -> list[Peer]:
        """Return the variants of a pass."""
        known = find_peers()
        return [known[name] for name in run.variants()]

    def verdicts(self) -> list[Verdict]:
        """Judge it by today's targets."""
        return judge(self.passes)

    def as_json(self) -> dict[str, Any]:
        """Return what ``read`` reads."""
        return {
            "schema": SCHEMA,
            "taken_at": self.taken_at,
            "environment": self.environment,
            "passes": [pass_as_json(each, self.peers_of(each)) for each in self.passes],
            "targets": [verdict.as_json() for verdict in self.verdicts()],
        }


def read(path: Path) -> Result:
    """Return a result that was kept.

    Raises:
        CommandError: it cannot be read, or is none, or none of this version.
    """
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}", status=2) from error
    if not isinstance(stored, dict) or "schema" not in stored:
        raise CommandError(f"{path} is no result of these benchmarks", status=2)
    if stored["schema"] != SCHEMA:
        text = f"{path} has schema {stored['schema']!r}, and only {SCHEMA} can be read"
        raise CommandError(text, status=2)
    try:
        passes = [pass_from_json(each) for each in stored["passes"]]
        machine, taken_at = stored["environment"]["machine"], str(stored["taken_at"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        text = f"{path} is no whole result of these benchmarks: {type(error).__name__}: {error}"
        raise CommandError(text, status=2) from error
    known = find_peers()
    for each in passes:
        strange = [name for name in each.figures if name not in EVERY_MEASURE]
        strange += [name for name in each.variants() if name not in known]
        if strange:
            raise CommandError(f"{path} knows {strange[0]!r}, this version does not", status=2)
    assert machine is not None
    return Result(stored["environment"], passes, taken_at)
