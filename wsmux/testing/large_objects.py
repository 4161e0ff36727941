"""Find the largest objects of a process, and what holds them.

Bytes are unknown to the garbage collector, but not what refers to them: the objects that it tracks,
the names of modules, and the running functions of every thread.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable
from types import FrameType, ModuleType

__all__ = ["largest"]

# Bytes from which an object is large, how many of them are named, and how many holders of each.
LARGE = 1024 * 1024
MOST = 5
HOLDERS = 3

# The modules of these tools.
OWN = (__name__, f"{__package__}.guards")

# What says where an object is, so that nobody needs to know what holds it.
PLACES = (FrameType, ModuleType)


def largest() -> list[str]:
    """Return a line for each of the largest objects: its type, its size, and what holds it.

    All objects are looked at, which takes seconds where there are millions. A line has the names of
    functions and modules, but no keys of other mappings, which may be secret. Before Python 3.13, a
    function that runs may hold what its names hold now for as long as it runs.
    """
    sources = _sources()
    sizes: dict[int, tuple[int, object]] = {}
    for source in sources:
        for value in (source, *_referents(source)):
            size = sys.getsizeof(value, 0)
            if size >= LARGE:
                sizes[id(value)] = size, value
    chains = [[value] for _, value in sorted(sizes.values(), key=lambda known: -known[0])[:MOST]]
    for _ in range(HOLDERS):
        ends = {id(chain[-1]) for chain in chains if not isinstance(chain[-1], PLACES)}
        holders: dict[int, object] = {}
        for source in sources:
            for value in _referents(source):
                if id(value) in ends and value is not source:
                    holders.setdefault(id(value), source)
        for chain in chains:
            if id(chain[-1]) in holders:
                chain.append(holders[id(chain[-1])])
    return [
        f"{type(chain[0]).__name__} of {sizes[id(chain[0])][0] // 1024} KiB"
        + "".join(_place(*held) for held in zip(chain, chain[1:], strict=False))
        for chain in chains
    ]


def _sources() -> list[object]:
    """Return what refers to objects, without the running functions of these tools."""
    found: list[object] = gc.get_objects()
    # Those that ``gc.freeze`` has put aside are not among them: modules may be. They go first, as
    # of two holders the first is named.
    modules = [module for module in sys.modules.values() if isinstance(module, ModuleType)]
    found[:0] = [*modules, *map(vars, modules)]
    tops = sys._current_frames()
    # A function that held itself would hold all of this until the next garbage collection.
    tops[threading.get_ident()] = sys._getframe(1)
    for top in tops.values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_globals.get("__name__") not in OWN:
                found.append(frame)
            frame = frame.f_back
    return found


def _referents(source: object) -> Iterable[object]:
    """Return what an object refers to; a function that runs shows that of its names alone."""
    return source.f_locals.values() if isinstance(source, FrameType) else gc.get_referents(source)


def _place(value: object, holder: object) -> str:
    """Say where a value is held."""
    if isinstance(holder, ModuleType):
        return f" of module {holder.__name__}"
    if isinstance(holder, FrameType):
        code = holder.f_code
        names = holder.f_locals
        place = f"{code.co_qualname} ({code.co_filename}:{holder.f_lineno})"
    elif isinstance(holder, dict) and "__name__" in holder and "__spec__" in holder:
        names = holder
        place = "the names"
    else:
        return f" in {type(holder).__name__}"
    (name, *_) = (name for name, held in names.items() if held is value)
    return f" as {name} in {place}"
