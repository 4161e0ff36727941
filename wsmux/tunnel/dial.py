"""Connect to the destination of a tunnel, if it is allowed."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from ..runtime.deadline import Deadline
from .allow import AllowList
from .errors import TunnelError
from .places import Place, Tcp, Unix

__all__ = ["CONNECT_TIMEOUT", "dial"]

# Total seconds for all addresses of a host.
CONNECT_TIMEOUT = 10.0


def dial(
    place: Place, allowed: AllowList | None, timeout: float = CONNECT_TIMEOUT
) -> socket.socket:
    """Return a socket that is connected to a destination.

    Blocks for at most ``timeout`` seconds, plus the time that the system takes to resolve a name.
    The allowed addresses of a host are tried in the order of the resolver, each for its share of
    the time. They are connected to as resolved: the name is not resolved again.

    Args:
        allowed: what may be connected to; ``None`` for everything.

    Raises:
        TunnelError: 403 not allowed, 502 refused or not resolved, 504 no answer in time.
    """
    deadline = Deadline(timeout)
    if isinstance(place, Unix):
        if allowed is not None and not allowed.by_name(place):
            raise _forbidden(place)
        return _connected(socket.AF_UNIX, place.path, deadline, place)
    if allowed is not None and not allowed.may_resolve(place):
        raise _forbidden(place)
    found = _resolved(place, named=allowed is None or allowed.by_name(place))
    if allowed is not None:
        found = [each for each in found if allowed.by_address(place, each[1][0])]
        if not found:
            raise _forbidden(place)
    for left, (family, address) in zip(range(len(found), 0, -1), found, strict=True):
        share = Deadline((deadline.remaining() or 0.0) / left)
        try:
            return _connected(family, address, share, place)
        except TunnelError:
            if left == 1:
                raise
    raise TunnelError(502, f"{place} has no address")


def _forbidden(place: Place) -> TunnelError:
    return TunnelError(403, f"{place} is not on the list of allowed destinations")


def _resolved(place: Tcp, named: bool) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        if not named:  # a client must not learn whether a forbidden name exists
            raise _forbidden(place) from error
        raise TunnelError(502, f"the name {place.host} cannot be resolved") from error
    return [(family, address) for family, _, _, _, address in found]


def _connected(family: int, address: Any, deadline: Deadline, place: Place) -> socket.socket:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise TunnelError(503, f"no socket for {place}: {error.strerror}") from error
    try:
        sock.settimeout(max(deadline.remaining() or 0.0, 0.001))  # 0 would be non-blocking
        sock.connect(address)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except TimeoutError as error:
        sock.close()
        raise TunnelError(504, f"{place} does not answer") from error
    except OSError as error:
        sock.close()
        text = os.strerror(error.errno or errno.EIO)
        raise TunnelError(502, f"{place} cannot be reached: {text}") from error
    except BaseException:
        sock.close()
        raise
    return sock
