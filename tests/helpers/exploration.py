"""Go through the states of a ``World``, each of them once, the nearest first."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self

__all__ = ["Broken", "Explored", "Left", "World", "explore", "steps"]

# Actions within which a quiet run comes to rest.
LONGEST_QUIET = 60


class Broken(AssertionError):
    """Report a promise that was not kept."""


class Left(Protocol):
    """Say how much of what leaves no trace in a state may still happen."""

    def covers(self, other: Any, /) -> bool:
        """Return whether whatever may happen to another may happen to this one."""


class World(Protocol):
    """Hold machines and what is between them, in one state."""

    @property
    def left(self) -> Left:
        """How much may still happen."""

    def copy(self) -> Self:
        """Return another world in the same state; neither sees what the other one does."""

    def fingerprint(self) -> int:
        """Return a number that is the same for equal states, whatever the path."""

    def path(self) -> list[str]:
        """Return the actions that led here."""

    def actions(self) -> Iterable[Any]:
        """Return what can happen next, as far as the bounds allow."""

    def quiet_action(self) -> Any:
        """Return what happens next if nothing fails any more; ``None`` if that is nothing."""

    def do(self, action: Any, /) -> None:
        """Let one thing happen."""

    def check(self) -> None:
        """Raise ``Broken`` if the parts of the state exclude each other."""

    def check_at_rest(self) -> None:
        """Raise ``Broken`` if something is still owed, though nothing will happen any more."""


def steps(trace: Any) -> list[str]:
    """Return the actions of a trace in order: it is a pair of the trace before and the last one."""
    actions: list[str] = []
    while trace is not None:
        trace, action = trace
        actions.append(str(action))
    return actions[::-1]


class Explored(NamedTuple):
    """Say how far an exploration came.

    ``whole`` tells that no state within the bounds is left; ``depth`` is the longest path.
    """

    states: int
    steps: int
    depth: int
    whole: bool
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.states} states by {self.steps} steps, up to {self.depth} actions deep, "
            f"{'all' if self.whole else 'not all'} within the bounds, in {self.seconds:.1f} s"
        )


def explore(world: World, most: int) -> Explored:
    """Visit up to ``most`` states, and check the promises in each.

    A state is visited again only with bounds that allow what no earlier visit did.

    Raises:
        Broken: a promise was not kept; the text has the actions that led there.
    """
    started = time.monotonic()
    seen: dict[int, tuple[Left, ...]] = {world.fingerprint(): (world.left,)}
    live: set[int] = set()
    ahead = deque([(0, world)])
    steps = depth = 0
    with _no_collections():
        while ahead and len(seen) < most:
            depth, world = ahead.popleft()
            _check_quiet(world, live)
            for action in world.actions():
                steps += 1
                following = world.copy()
                try:
                    following.do(action)
                    following.check()
                except Broken as error:
                    raise _with_path(error, following) from error
                mark, left = following.fingerprint(), following.left
                before = seen.get(mark, ())
                if not any(other.covers(left) for other in before):
                    seen[mark] = (*(other for other in before if not left.covers(other)), left)
                    ahead.append((depth + 1, following))
    return Explored(len(seen), steps, depth, not ahead, time.monotonic() - started)


def _check_quiet(world: World, live: set[int]) -> None:
    """Check that a quiet run from here comes to rest, or to where another one came from."""
    passed: list[int] = []
    mark = world.fingerprint()
    try:
        while mark not in live:
            passed.append(mark)
            action = world.quiet_action()
            if action is None:
                world.check_at_rest()
                break
            if len(passed) > LONGEST_QUIET:
                raise Broken(f"a quiet run does not come to rest in {LONGEST_QUIET} actions")
            world = world.copy()
            world.do(action)
            world.check()
            mark = world.fingerprint()
    except Broken as error:
        raise _with_path(error, world) from error
    live.update(passed)


def _with_path(error: Broken, world: World) -> Broken:
    lines = (f"{number:3}. {action}" for number, action in enumerate(world.path(), 1))
    return Broken("\n".join([str(error), *lines]))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector from the states, of which none is in a circle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
