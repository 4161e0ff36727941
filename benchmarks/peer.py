"""Say what a figure is, and what a library must offer that it is taken of."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from shutil import which
from typing import Any

from .environment import missing_module

# Figures that some leave out: of many connections; of idle ones, since a line is one; and of what
# only wsmux has, idle streams by the thousand and a window that is told.
CONNECTION_COUNTS = (1, 10, 50, 200, 1000)
CONNECTIONS = tuple(f"connections-{count}" for count in CONNECTION_COUNTS)
IDLE_CONNECTIONS = ("idle-connection-server", "idle-connection-client")
OURS = ("among-idle", "tail-window")


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


@dataclass
class Peer(ABC):
    """One variant of the measurement: a library, or a pair of them, with its settings.

    A module in ``peers/`` lists its own in ``PEERS``. The methods are called in worker processes.

    Attributes:
        name: one word, for the command line and the results.
        about: what it is, in a few words.
        base: the variant that ratios are taken against.
        protocol: the wire it is there for, which ``--protocol`` chooses it by.
        needs: modules that must be installed. programs: those that must be on the path.
        hides: modules that are made to look as if they were not, before anything is imported.
        environment: variables to set in both processes; ``None`` removes one.
        python_variable: the environment variable that names the Python to run it, where it needs
            another one than this.
        kind: what is measured of it: ``"streams"``, or with the option of that name ``"rpc"``,
            ``"bus"``, ``"spark"`` or ``"cluster"``.
        leaves_out: figures that cannot be taken of it.
        on_demand: whether it is measured only when it is named, or with ``--all``.
    """

    name: str
    about: str
    base: str = "raw"
    protocol: str | None = None
    needs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    python_variable: str | None = None
    kind: str = "streams"
    leaves_out: tuple[str, ...] = ()
    on_demand: bool = False

    def python(self, role: str = "client") -> str | None:
        """Return the Python that runs it; ``None`` when nobody has named the one it needs."""
        variable = self.python_variable
        return sys.executable if variable is None else os.environ.get(variable) or None

    def lacks(self) -> str | None:
        """Return why it cannot be measured here; ``None`` when it can."""
        python = self.python()
        if python is None:
            return f"{self.python_variable} names no Python that has {self.needs[0]}"
        try:
            missing = missing_module(python, self.needs)
        except OSError as error:
            return str(error)
        where = f" for {python}" if self.python_variable else ""
        reasons = [f"{missing} is not installed{where}"] if missing else []
        reasons += [f"there is no {each} here" for each in self.programs if not which(each)]
        return next(iter(reasons), None)

    def check(self) -> None:  # noqa: B027  (most have nothing to check)
        """Raise ``RuntimeError`` when this process is not what the name promises."""

    @abstractmethod
    def serve(self) -> AbstractContextManager[Any]:
        """Serve every line of every client as ``serve_line`` does; return the address."""

    @abstractmethod
    def connect(self, address: Any) -> AbstractContextManager[Any]:
        """Return what measures a server, with a method for each figure: see ``measures.py``."""
