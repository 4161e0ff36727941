"""Measure what a machine holds in memory."""

from __future__ import annotations

import gc
import sys
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

__all__ = ["held"]

_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, Enum)


def held(thing: object) -> int:
    """Return the bytes of a thing and of all that it refers to, code and constants aside."""
    seen: set[int] = set()
    total = 0
    found = [thing]
    while found:
        item = found.pop()
        if id(item) in seen or isinstance(item, _CODE):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        found += gc.get_referents(item)
    return total
