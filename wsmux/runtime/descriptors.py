"""Know how many descriptors this process may have, and for how many connections they last."""

from __future__ import annotations

import resource
import sys

__all__ = ["PARTS", "RAISE", "descriptors", "descriptors_left", "most_connections"]

# Of 16 parts of the descriptors, connections get 6 for their sockets, two for each; 8 are the half
# that waiting threads may have, and the rest is for all else.
PARTS, OURS, EACH = 16, 6, 2

# Of 16 parts, those that no connection takes whose socket would be among the last.
LAST = 2

# What to do about a limit of connections that comes from here.
RAISE = "the other descriptors of the process are for all else; let it have more (ulimit -n)"


def descriptors() -> int:
    """Return how many descriptors this process may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def most_connections() -> int:
    """Return for how many connections this process has descriptors, whatever else it does."""
    return max(1, descriptors() * OURS // (PARTS * EACH))


def descriptors_left(newest: int) -> bool:
    """Return whether there are some left for the connection of a socket that was just opened.

    Args:
        newest: its descriptor, the lowest that was free when the wait for the socket began. So
            about as many are in use, if none has been opened in numbers since then.
    """
    most = descriptors()
    return newest < most - most * LAST // PARTS
