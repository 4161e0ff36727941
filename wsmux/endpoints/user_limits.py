"""Count the connections and streams of each user, within the limits of ``UserLimits``.

A rate is one time: when all of its minute will be free again. What is taken moves it on, and it may
not be more than a minute ahead (the generic cell rate algorithm, as of ATM). So a user is three
numbers, and one without connections whose times have passed need not be remembered.

One lock guards the table. It is the last one that a thread takes, also under the mutex of a
connection, and nothing waits under it.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..config import UserLimits
from ..exceptions import HandshakeError
from ..handshake.http_request import RETRY_AFTER
from ..runtime import clock, fork

if TYPE_CHECKING:
    from .shared_limits import SharedCounts

__all__ = ["UserPlace", "Users"]

# Seconds over which rates are counted.
PERIOD = 60.0

# Clients that may be about to return, for each connection of a full user: one that has cut off an
# attempt begins the next before the server knows.
RETURNING = 2

# How many times as often as a user may begin connections, it may return to those that it has.
RETURNS = 10

# Seconds of a period that rounding may take.
ROUNDING = 1e-6


class _User:
    """What is counted of one user.

    Attributes:
        connections: those that are open.
        returning: clients that may only return to one of them, and have not said to which.
        connects_due, returns_due, streams_due: when the whole rate will be free again.
    """

    __slots__ = ("connections", "connects_due", "returning", "returns_due", "streams_due")

    def __init__(self) -> None:
        self.connections = self.returning = 0
        self.connects_due = self.returns_due = self.streams_due = 0.0

    def fresh(self, now: float) -> bool:
        """Return whether nothing is to be remembered."""
        due = max(self.connects_due, self.returns_due, self.streams_due)
        return not self.here() and due <= now

    def here(self) -> bool:
        """Return whether there are connections."""
        return bool(self.connections or self.returning)


def _taken(due: float, rate: int, now: float) -> tuple[float, float]:
    """Return where one more of ``rate`` a period moves ``due``, and the seconds until it may."""
    moved = max(due, now) + PERIOD / rate
    wait = moved - now - PERIOD
    return moved, wait if wait > ROUNDING else 0.0


def _too_often(limits: UserLimits, wait: float) -> HandshakeError:
    text = f"more than {limits.connects_per_minute} connections in a minute"
    return HandshakeError(f"{text}; try again in {math.ceil(wait)} s", 429, wait)


def _too_many(limits: UserLimits) -> HandshakeError:
    text = f"{limits.connections} connections of this user are open; close some"
    return HandshakeError(text, 429, RETRY_AFTER)


class UserPlace:
    """The place of one connection of a user.

    Attributes:
        returns: there is none free: the client may only return to a connection that it has.

    Args:
        charged: a connection was taken from the rate of the user.
    """

    def __init__(
        self, users: Users, user: str, counted: _User, returns: bool, charged: bool
    ) -> None:
        self.returns = returns
        self._charged = charged
        self._users = users
        self._user = user
        self._counted = counted
        self._held = True
        self._shared: str | None = None  # what other processes were asked about it by
        self._charged_shared = False  # they have taken a connection from the rate of the user

    def take_stream(self) -> bool:
        """Count a stream that the user opens; return false if it is one too many. Never blocks."""
        return self._users.take_stream(self._user, self._counted)

    def leave(self) -> None:
        """Give the place to another connection of the user; may be repeated."""
        if self._held:
            self._held = False
            self._users.leave(self._user, self._counted, self.returns)
        self._leave_shared()

    def returned(self) -> None:
        """Leave, as the client has returned to a connection, which has its own place.

        So this was no connection that the user has begun, unless it returns too often.
        """
        if self._charged and self._users.take_return(self._counted):
            self._give_back()
            self._give_back_shared()
        self.leave()

    def _give_back(self) -> None:
        if self._charged:
            self._charged = False
            self._users.give_back(self._counted)

    def _give_back_shared(self) -> None:
        if self._charged_shared:
            self._charged_shared = False
            self._users.give_back_shared(self._user)

    def _leave_shared(self) -> None:
        if self._shared is not None:
            self._users.leave_shared(self._user, self._shared)
            self._shared = None

    def share(self, shared: SharedCounts, may_return: bool) -> None:
        """Count the connection together with other processes.

        Raises:
            HandshakeError: it is one too many there; the place is given back.
        """
        limits, verdict = self._users.limits, ""
        try:
            self._shared, answer = shared.enter(self._user, may_return)
            verdict = "" if answer is None else answer.verdict
            self._charged_shared = verdict in ("in", "returns")
            often = answer is not None and verdict == "often"
            if answer is not None and often and not may_return:
                raise _too_often(limits, answer.seconds)
            if verdict == "full":
                raise _too_many(limits)
            if often or verdict == "returns":
                self._users.turn_back(self._counted, often)
                self.returns = True
            if often:
                self._give_back()
        except BaseException:
            self._give_back()
            self._give_back_shared()
            self.leave()
            raise


class Users:
    """Hold what is counted of the users of one server or ``Mux``.

    Args:
        limits: what each of them may do.

    Raises:
        TypeError: it is something else.
    """

    def __init__(self, limits: UserLimits) -> None:
        if not isinstance(limits, UserLimits):
            kind = type(limits).__name__
            raise TypeError(
                "user_limits must be a wsmux.UserLimits, such as UserLimits(connections=5), "
                f"not {kind}"
            )
        self.limits = limits
        self._shared: SharedCounts | None = None
        if limits.redis is not None:
            from .shared_limits import SharedCounts

            self._shared = SharedCounts(limits, self.learn)
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child serves no connections."""
        self._lock = threading.Lock()
        self._present: dict[str, _User] = {}  # with connections
        self._absent: OrderedDict[str, _User] = OrderedDict()  # who left first comes first

    def __len__(self) -> int:
        return len(self._present) + len(self._absent)

    def enter(self, user: str, may_return: bool = False) -> UserPlace:
        """Count a connection of a user.

        Args:
            may_return: the client may mean a connection that it has already.

        Blocks for half a second at most, where other processes are asked.

        Raises:
            HandshakeError: it is one too many, with 429. Nothing is counted then.
        """
        place = self._enter(user, may_return)
        if self._shared is not None and not place.returns:
            place.share(self._shared, may_return)
        return place

    def _enter(self, user: str, may_return: bool) -> UserPlace:
        limits, now = self.limits, clock.monotonic()
        rate, most = limits.connects_per_minute, limits.connections
        with self._lock:
            found = self._present.get(user) or self._absent.get(user) or _User()
            due, wait = (0.0, 0.0) if rate is None else _taken(found.connects_due, rate, now)
            if wait and not may_return:
                raise _too_often(limits, wait)
            full = most is not None and found.connections >= most
            if full and not may_return:
                raise _too_many(limits)
            if full or wait:
                self._return_locked(found, bool(wait))
            else:
                found.connections += 1
            charged = rate is not None and not wait
            if charged:
                found.connects_due = due
            self._absent.pop(user, None)
            self._present[user] = found
            return UserPlace(self, user, found, bool(full or wait), charged)

    def _return_locked(self, found: _User, often: bool) -> None:
        most = self.limits.connections
        if most is not None and found.returning >= RETURNING * most:
            raise _too_many(self.limits)
        wait = self._take_return_locked(found) if often else 0.0
        if wait:
            raise _too_often(self.limits, wait)
        found.returning += 1

    def turn_back(self, found: _User, often: bool) -> None:
        """Count a client as one that may only return.

        Args:
            often: the reason is that its user has begun too many connections.

        Raises:
            HandshakeError: there are too many of these; it is counted as it was.
        """
        with self._lock:
            self._return_locked(found, often)
            found.connections -= 1

    def leave(self, user: str, found: _User, returns: bool) -> None:
        """Stop counting a connection; without effect in a forked child."""
        now = clock.monotonic()
        with self._lock:
            if self._present.get(user) is not found:
                return
            if returns:
                found.returning -= 1
            else:
                found.connections -= 1
            if found.here():
                return
            del self._present[user]
            while self._absent and next(iter(self._absent.values())).fresh(now):
                self._absent.popitem(last=False)
            if not found.fresh(now):
                self._absent[user] = found
                if len(self._absent) > self.limits.max_users:
                    self._absent.popitem(last=False)

    def leave_shared(self, user: str, connection: str) -> None:
        """Stop counting a connection together with other processes."""
        if self._shared is not None:
            self._shared.leave(user, connection)

    def _take_return_locked(self, found: _User) -> float:
        """Take one return of a minute; return the seconds to wait, if there is none left."""
        rate = self.limits.connects_per_minute
        assert rate is not None
        due, wait = _taken(found.returns_due, RETURNS * rate, clock.monotonic())
        if not wait:
            found.returns_due = due
        return wait

    def take_return(self, found: _User) -> bool:
        """Count a client that has returned; return false if its user does so too often."""
        with self._lock:
            return not self._take_return_locked(found)

    def give_back_shared(self, user: str) -> None:
        """Give back what a connection has taken of its user's rate in all processes."""
        if self._shared is not None:
            self._shared.give_back(user)

    def give_back(self, found: _User) -> None:
        """Give back what a connection has taken of its user's rate."""
        rate = self.limits.connects_per_minute
        if rate is not None:
            with self._lock:
                found.connects_due -= PERIOD / rate

    def learn(self, user: str, ahead: float) -> None:
        """Take note of the seconds by which the streams of a user are ahead in all processes."""
        due = clock.monotonic() + ahead
        with self._lock:
            found = self._present.get(user)
            if found is not None:
                found.streams_due = max(found.streams_due, due)

    def close(self) -> None:
        """Give back what is counted together with other processes, as the server has ended.

        Blocks for a second at most. From then on this process counts for itself.
        """
        if self._shared is not None:
            self._shared.close()

    def take_stream(self, user: str, found: _User) -> bool:
        """Count a stream of a user; return false if it is one too many."""
        rate = self.limits.streams_per_minute
        if rate is None:
            return True
        now = clock.monotonic()
        with self._lock:
            due, wait = _taken(found.streams_due, rate, now)
            if wait:
                return False
            found.streams_due = due
        if self._shared is not None:
            self._shared.took_stream(user)
        return True
