"""Say what a figure is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Of what a variant's ``connect`` yields; see ``Peer.kind``.
Rate = Callable[[Any, float, dict[str, float]], float]


@dataclass(frozen=True)
class Measure:
    """Name one figure; ``run(client, seconds, known)`` returns it, ``known`` keeps rates.

    A ``fresh`` one is taken of processes that have done nothing else, and do nothing more. A
    ``heavy`` one takes long: only when it is named or with ``--all``, fewer times, and in one pass.
    ``only`` names the one variant that it is taken of, ``group`` what it is of several of, and
    ``needs`` the modules that must be installed.
    """

    title: str
    unit: str
    run: Rate
    fresh: bool = False
    heavy: bool = False
    less_is_better: bool = False
    only: str | None = None
    group: str = ""
    needs: tuple[str, ...] = ()
