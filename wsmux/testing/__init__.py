"""Help users test what they build on streams: faulty networks, leak guards, and a lock checker.

``FaultProxy`` sits between real sockets; ``Network`` joins pure machines in memory, with a
simulated clock. ``held``, ``leaks`` and ``nothing_left`` find what a test leaves behind,
``hang_bound`` turns a hang into a failure with all stacks; ``wsmux.testing.plugin`` provides them
to pytest. ``LockOrder`` and ``restless`` look for deadlocks and races. No other part of wsmux
imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .faultproxy import FaultProxy
    from .guards import Held, LeakError, hang_bound, held, leaks, nothing_left
    from .link import Counters, Faults
    from .locks import LockOrder, LockOrderError
    from .muxend import MuxEnd
    from .network import End, Network
    from .pairs import FaultyPair, faulty_pair
    from .scheduling import restless

__all__ = [
    "Counters",
    "End",
    "FaultProxy",
    "Faults",
    "FaultyPair",
    "Held",
    "LeakError",
    "LockOrder",
    "LockOrderError",
    "MuxEnd",
    "Network",
    "faulty_pair",
    "hang_bound",
    "held",
    "leaks",
    "nothing_left",
    "restless",
]

__getattr__ = lazy_names(
    __name__,
    {
        "faultproxy": ("FaultProxy",),
        "guards": ("Held", "LeakError", "hang_bound", "held", "leaks", "nothing_left"),
        "link": ("Counters", "Faults"),
        "locks": ("LockOrder", "LockOrderError"),
        "muxend": ("MuxEnd",),
        "network": ("End", "Network"),
        "pairs": ("FaultyPair", "faulty_pair"),
        "scheduling": ("restless",),
    },
)
