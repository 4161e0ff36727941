"""A client and a server keep their promises in every state that faults can bring them into.

What is promised: each call is handled once at most, by all servers together; in order; in its own
session; not by a later server once it has ended with UNEXPECTED_DISCONNECT. The counters of both
ends fit together. No end takes the other one for a bad peer. A handshake that comes late, when its
client has left the connection, even at the next server, ends no connection and no session that the
client has. And when no further faults come, whatever was sent in a session that goes on is
answered.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

import pytest

from wsmux.rpc.options import Options
from wsmux.rpc.session import connector
from wsmux.rpc.session.connector import Connector
from wsmux.rpc.session.reconnect_limiter import ReconnectLimiter
from wsmux.rpc.session.session import SendBuffer, Session
from wsmux.rpc.session.session_registry import Sessions
from wsmux.rpc.wire.handshake import Attempt, ExpectedState
from wsmux.rpc.wire.message_size import Packer

from ...helpers.exploration import Broken, explore
from ...helpers.fixtures import Tell
from ...helpers.rpc.session_world import (
    Action,
    Bounds,
    World,
    keep_refused_sessions,
    without_order,
    without_welcomed,
)
from ...helpers.rpc.session_worlds import WORLDS, explore_apart

# All states of one world within these are looked at in the plain suite.
SMALL = Bounds(calls=1, losses=1, beats=0, graces=1, restarts=1)
LATE = Bounds(calls=1, losses=2, beats=0, graces=1, restarts=0)
BEATING = Bounds(calls=1, losses=0, beats=2, graces=0, restarts=1)


@pytest.mark.parametrize("bounds", [SMALL, LATE, BEATING], ids=["small", "late", "beating"])
def test_every_state_within_small_bounds_keeps_the_promises(bounds: Bounds, tell: Tell) -> None:
    explored = explore(World(bounds), 10_000)
    tell(str(explored))
    assert explored.whole
    assert explored.states > 400


@pytest.mark.long
@pytest.mark.hang_bound(1800)
def test_a_million_states_keep_the_promises(tell: Tell) -> None:
    """Two processes share the worlds."""
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(WORLDS, pool.map(explore_apart, WORLDS), strict=True))
    for name, explored in found.items():
        tell(f"{name}: {explored}")
        assert explored.whole
    assert sum(explored.states for explored in found.values()) >= 10**6


# Rules that are taken out


def _without_is_reconnect(patch: pytest.MonkeyPatch) -> None:
    real = connector.request_payload

    def request_payload(*args: Any, is_reconnect: bool, attempt: Attempt) -> dict[str, Any]:
        return real(*args, attempt=attempt)

    patch.setattr(connector, "request_payload", request_payload)


def _without_repeating(patch: pytest.MonkeyPatch) -> None:
    real = Session.attach

    def attach(self: Session, now: float, acknowledged: int = 0) -> None:
        real(self, now, acknowledged)
        self._queue = []

    patch.setattr(Session, "attach", attach)


def _without_counters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "expected_state", lambda self: ExpectedState(0, 0))


def _without_leaving_duplicates(patch: pytest.MonkeyPatch) -> None:
    real = SendBuffer.accept

    def accept(self: SendBuffer, seq: int, ack: int, size: int, *, owed: bool = True) -> Any:
        self.ack = min(self.ack, seq)
        return real(self, seq, ack, size, owed=owed)

    patch.setattr(SendBuffer, "accept", accept)


@pytest.mark.parametrize(
    ("take_out", "text"),
    [
        (_without_repeating, "a quiet run leaves call 0 without an answer"),
        (_without_counters, "a session that is there is not resumed"),
        (keep_refused_sessions, "a quiet run does not come to rest"),
        (_without_leaving_duplicates, "call 0 is handled twice"),
        (without_order, "a late handshake ends a connection that the client has"),
        (without_welcomed, "call 0 is handled twice"),
    ],
)
def test_a_missing_rule_is_found(
    take_out: Callable[[pytest.MonkeyPatch], None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)
    with pytest.raises(Broken, match=text):
        explore(World(SMALL._replace(beats=1)), 10_000)


def test_the_double_run_of_a_call_needs_a_restart_and_eleven_actions(
    monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    """A session that was never acknowledged has the counters of a new one."""
    _without_is_reconnect(monkeypatch)
    with pytest.raises(Broken) as broken:
        explore(World(SMALL), 10_000)
    what, *actions = str(broken.value).splitlines()
    tell("\n  ".join([what, *actions]))
    assert what == "call 0 is handled twice"
    assert len(actions) == 11
    assert [line for line in actions if "restart" in line] == ["  6. restart"]


@pytest.mark.parametrize(
    ("bounds", "fault"), [(SMALL, "restart"), (LATE, "server's grace runs out")], ids=str
)
def test_the_double_run_of_a_call_over_a_late_handshake(
    bounds: Bounds, fault: str, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    """The handshake of a connection that was given up begins a double of the session."""
    without_welcomed(monkeypatch)
    with pytest.raises(Broken) as broken:
        explore(World(bounds), 20_000)
    what, *actions = str(broken.value).splitlines()
    tell("\n  ".join([what, *actions]))
    assert what == "call 0 is handled twice"
    named = [line.partition(". ")[2] for line in actions]
    assert fault in named
    assert named.index("deliver to server, connection 1") > named.index(fault)


# The machinery

COPIED = (Connector, Sessions, Session, SendBuffer, ReconnectLimiter)


def changing(thing: Any, at: str = "", found: dict[int, str] | None = None) -> dict[int, str]:
    """Return the places of what can change within a machine, by identity."""
    found = {} if found is None else found
    if id(thing) in found:
        return found
    if isinstance(thing, COPIED):
        found[id(thing)] = at
        names = SendBuffer.__slots__ if isinstance(thing, SendBuffer) else vars(thing)
        for name in names:
            changing(getattr(thing, name), f"{at}.{name}", found)
    elif isinstance(thing, dict):
        found[id(thing)] = at
        for key, value in thing.items():
            changing(value, f"{at}[{key!r}]", found)
    elif type(thing).__hash__ is None:  # a list, a deque, a set
        found[id(thing)] = at
    else:
        constant = (str, int, float, Enum, Options, Packer, Attempt, type(None))
        assert isinstance(thing, constant) or callable(thing) or at.endswith("._codec"), at
    return found


def test_a_copy_shares_nothing_that_changes() -> None:
    """A machine that gets another attribute must not escape the copying."""
    world = World(SMALL)
    for name, attempt in [
        ("call", 0),
        ("dial", 0),
        ("deliver to server", 1),
        ("deliver to client", 1),
        ("deliver to server", 1),
        ("heartbeat", 0),
        ("server loses", 1),
    ]:
        world.do(Action(name, attempt))
    copy = world.copy()
    assert copy.fingerprint() == world.fingerprint()
    ours = changing(world.client) | changing(world.server)
    theirs = changing(copy.client) | changing(copy.server)
    assert len(ours) == len(theirs) > 10
    assert [ours[shared] for shared in ours.keys() & theirs.keys()] == []
    before = world.fingerprint()
    copy.do(Action("client loses", 1))
    copy.do(Action("dial"))
    assert world.fingerprint() == before != copy.fingerprint()
