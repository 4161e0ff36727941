"""Know every figure, by what it is of."""

from __future__ import annotations

from .bus_measures import BUS_MEASURES
from .measures import MEASURES, Measure
from .rpc_measures import RPC_MEASURES

__all__ = ["EVERY_MEASURE", "MEASURES_OF"]

MEASURES_OF: dict[str, dict[str, Measure]] = {
    "streams": MEASURES,
    "rpc": RPC_MEASURES,
    "bus": BUS_MEASURES,
}

EVERY_MEASURE = {name: each for kind in MEASURES_OF.values() for name, each in kind.items()}
