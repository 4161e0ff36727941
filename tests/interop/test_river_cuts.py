"""Cut the connections of the client of PyPI `replit-river`, and end either side.

What its sessions can survive: messages of the server are never lost, doubled or reordered. What the
client itself has written to a lost socket it never sends again, and its next handshake says that
those messages had been sent. Our server refuses that with SESSION_STATE_MISMATCH, as shipped ones
do, and the client begins anew; its pending calls end. So where a session is to survive, nothing of
the client's may be under way.

A close with code 1000 lets the client spin for ever, and its whole event loop with it. Where our
server closes while the client is connected, the peer is one that is killed afterwards.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.interop.link import KIB, WAIT
from ..helpers.interop.peer_process import PeerProcess, generate
from ..helpers.interop.river_link import RiverLink, river_marks
from ..helpers.waiting import wait_for

pytestmark = river_marks

# Below half of what the server sends without asking: the client has no reason to say anything.
MANY = 500

GRACE = 0.2
HASTY = rpc.Options(heartbeat_interval=600, session_disconnect_grace=GRACE)


def resumed(river: RiverLink, before: dict[str, Any]) -> bool:
    """Return whether the client still has its session, which is the server's only one."""
    after = river.peer.call("waitSession")
    return after["session"] == before["session"] and river.sessions == 1


def cut_and_wait(river: RiverLink) -> dict[str, Any]:
    """Cut the connection, and return what the client told before, when it has another one."""
    before: dict[str, Any] = river.peer.call("report")
    river.wait_received(before["seq"])
    accepted = river.proxy.accepted
    river.proxy.cut()
    wait_for(lambda: river.proxy.accepted > accepted and river.attached)
    return before


def assert_began_anew(river: RiverLink, before: dict[str, Any], call: int, kind: str) -> None:
    """Check that the client works with a new session, and that the call of the old one has ended.

    It ends in an error, but for an upload: that notices only when it has another request to send,
    and may then return None as if it were the response.
    """
    river.peer.call("waitOver", session=before["session"])
    river.assert_works()
    river.give(call, "too late")
    outcome = river.peer.call("outcome", call=call)
    after = river.peer.call("waitSession")
    facts = f"{before=} {after=} {outcome=} {river.facts()}"
    assert "error" in outcome or (kind, outcome["responses"]) == ("upload", [None]), facts
    assert after["session"] != before["session"], facts
    assert river.session_ids == [after["session"]], facts


# What survives


def test_a_session_survives_cuts_while_nothing_happens(cut_river: RiverLink) -> None:
    for _ in range(5):
        before = cut_and_wait(cut_river)
        cut_river.assert_works()
        assert resumed(cut_river, before)


def test_an_rpc_is_answered_over_the_next_connection(cut_river: RiverLink) -> None:
    call = cut_river.open("rpc", "test.hangs")
    assert cut_river.gate.entered.wait(WAIT)
    before = cut_and_wait(cut_river)
    cut_river.gate.opened.set()
    assert cut_river.result(call) == [None]
    assert resumed(cut_river, before)


def test_an_answer_that_was_lost_on_its_way_is_sent_again(cut_river: RiverLink) -> None:
    before = cut_river.peer.call("report")
    cut_river.proxy.lose("down")
    call = cut_river.open("rpc", "test.same", {"large": generate("lost", 64 * KIB)})
    wait_for(lambda: cut_river.proxy.counters("down").lost > 64 * KIB)
    cut_and_wait(cut_river)
    assert cut_river.result(call) == [{"large": generate("lost", 64 * KIB)}]
    assert resumed(cut_river, before)


def test_an_answer_that_was_made_without_a_connection_is_sent(cut_river: RiverLink) -> None:
    call = cut_river.open("rpc", "test.hangs")
    assert cut_river.gate.entered.wait(WAIT)
    cut_river.proxy.refusing = True
    cut_river.proxy.cut()
    wait_for(lambda: not cut_river.attached)
    cut_river.gate.opened.set()
    wait_for(lambda: cut_river.calls == 0)
    cut_river.proxy.refusing = False
    assert cut_river.result(call) == [None]


@pytest.mark.parametrize("count", [1, 2, 100, 1000, 4096, 50_000])
def test_a_subscription_loses_nothing_when_it_is_cut_anywhere(
    cut_river: RiverLink, count: int
) -> None:
    """The bytes are counted from its first message, and end in the middle of one."""
    before = cut_river.peer.call("report")
    call = cut_river.open("subscription", "holding.halves", {"first": 0, "last": MANY})
    assert cut_river.gate.entered.wait(WAIT)
    cut_river.proxy.cut_after(count)
    cut_river.gate.opened.set()
    assert cut_river.result(call) == [*range(MANY)]
    assert cut_river.proxy.accepted == 2
    assert resumed(cut_river, before)


def test_a_subscription_loses_nothing_when_it_is_cut_often(cut_river: RiverLink) -> None:
    before = cut_river.peer.call("report")
    call = cut_river.open("subscription", "holding.halves", {"first": 0, "last": MANY})
    assert cut_river.gate.entered.wait(WAIT)
    cut_river.proxy.cut_after(*[4000] * 8)
    cut_river.gate.opened.set()
    assert cut_river.result(call) == [*range(MANY)]
    assert cut_river.proxy.accepted == 9
    assert resumed(cut_river, before)


def test_a_stream_goes_on_both_ways_after_a_cut(cut_river: RiverLink) -> None:
    call = cut_river.open("stream", "test.echo")
    cut_river.give(call, *range(100), over=False)
    cut_river.peer.call("waitResponses", call=call, count=100)
    before = cut_and_wait(cut_river)
    cut_river.give(call, *range(100, 200))
    assert cut_river.result(call) == [*range(200)]
    assert resumed(cut_river, before)


def test_an_upload_goes_on_after_a_cut(cut_river: RiverLink) -> None:
    call = cut_river.open("upload", "holding.gather")
    cut_river.give(call, *range(100), over=False)
    cut_river.peer.call("waitSent", call=call)
    before = cut_and_wait(cut_river)
    cut_river.give(call, *range(100, 200))
    assert cut_river.result(call) == [[*range(200)]]
    assert resumed(cut_river, before)


def test_requests_made_without_a_connection_are_sent_with_the_next(cut_river: RiverLink) -> None:
    """What was never written to a socket is not forgotten."""
    call = cut_river.open("upload", "holding.gather")
    cut_river.wait_received(1)
    before = cut_river.peer.call("report")
    cut_river.proxy.refusing = True
    cut_river.proxy.cut()
    wait_for(lambda: not cut_river.attached)
    cut_river.peer.call("waitLost")
    cut_river.give(call, *range(100))
    cut_river.peer.call("waitTaken", call=call)
    cut_river.proxy.refusing = False
    assert cut_river.result(call) == [[*range(100)]]
    assert resumed(cut_river, before)


@pytest.mark.parametrize("count", [1, 100, 180, 250])
def test_a_session_survives_a_cut_in_its_next_handshake(cut_river: RiverLink, count: int) -> None:
    """In one of the upgrade, or in one of River, which the server has accepted then."""
    cut_river.assert_works()
    before = cut_river.peer.call("report")
    cut_river.proxy.refusing = True
    cut_river.proxy.cut()
    cut_river.peer.call("waitLost")
    cut_river.proxy.cut_after(count)
    cut_river.proxy.refusing = False
    wait_for(lambda: not cut_river.proxy.cutting)
    cut_river.assert_works()
    assert resumed(cut_river, before)


# What does not


def test_what_a_client_sends_comes_in_order_until_it_is_cut(mortal_river: PeerProcess) -> None:
    """It may spin when its sender finds the socket closed, so this goes no further."""
    with RiverLink(mortal_river, HASTY, proxied=True) as river:
        river.connect()
        call = river.open("upload", "holding.gather")
        river.give(call, numbers=[100_000])
        river.wait_received(1000)
        river.proxy.refusing = True
        river.proxy.cut()
        wait_for(lambda: not river.attached)
        mortal_river.kill()
        wait_for(lambda: (river.sessions, river.calls) == (0, 0))
        wait_for(lambda: river.gate.seen[-1] == "UNEXPECTED_DISCONNECT")
        numbers = river.gate.seen[:-1]
        assert numbers == [*range(len(numbers))]
        assert len(numbers) >= 999


@pytest.mark.parametrize(
    ("kind", "name"),
    [("rpc", "test.same"), ("upload", "holding.gather"), ("stream", "test.echo")],
)
def test_a_client_that_lost_what_it_wrote_begins_anew(
    cut_river: RiverLink, kind: str, name: str
) -> None:
    """The pending call ends in an error, though in none that says why."""
    call = None
    if kind != "rpc":
        call = cut_river.open(kind, name)
        cut_river.give(call, "arrives", over=False)
        cut_river.wait_received(2)
    before = cut_river.peer.call("report")
    cut_river.proxy.lose("up")
    if call is None:
        call = cut_river.open(kind, name, "never arrives")
    else:
        cut_river.give(call, "never arrives", over=False)
    wait_for(lambda: cut_river.proxy.counters("up").lost > 0)
    cut_river.peer.call("waitSent", call=call)
    cut_river.proxy.cut()
    assert_began_anew(cut_river, before, call, kind)
    wait_for(lambda: [failure[2] for failure in cut_river.failures] == ["SESSION_STATE_MISMATCH"])
    wait_for(lambda: ("closed", before["session"]) in cut_river.statuses)
    if kind == "upload":
        wait_for(lambda: cut_river.gate.seen == ["arrives", "UNEXPECTED_DISCONNECT"])
    if kind == "stream":
        wait_for(lambda: cut_river.gate.seen == ["UNEXPECTED_DISCONNECT"])


def test_a_client_that_comes_after_the_grace_begins_anew(river_peer: PeerProcess) -> None:
    with RiverLink(river_peer, HASTY, proxied=True) as river:
        before = river.connect()
        call = river.open("upload", "holding.gather")
        wait_for(lambda: len(river.gate.begun) == 1)
        river.proxy.refusing = True
        river.proxy.cut()
        wait_for(lambda: river.sessions == 0)
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"])
        river.proxy.refusing = False
        assert_began_anew(river, before, call, "upload")


def test_a_client_finds_another_server_at_the_same_address(cut_river: RiverLink) -> None:
    """As after a restart: the server knows nothing of the session."""
    cut_river.assert_works()
    before = cut_river.peer.call("report")
    call = cut_river.open("subscription", "holding.halves", {"first": 5, "last": 5})
    assert cut_river.gate.entered.wait(WAIT)
    first, cut_river.server = cut_river.server, cut_river.serve()
    cut_river.proxy.target = cut_river.server.port
    cut_river.proxy.cut()
    assert_began_anew(cut_river, before, call, "subscription")
    wait_for(lambda: [failure[2] for failure in cut_river.failures] == ["SESSION_STATE_MISMATCH"])
    cut_river.gate.opened.set()
    first.shutdown()


def test_a_session_without_transparent_reconnects_ends_with_its_connection(
    river_peer: PeerProcess,
) -> None:
    options = rpc.Options(heartbeat_interval=600, transparent_reconnect=False)
    with RiverLink(river_peer, options, proxied=True) as river:
        before = river.connect()
        call = river.open("upload", "holding.gather")
        wait_for(lambda: len(river.gate.begun) == 1)
        river.proxy.cut()
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"])
        assert_began_anew(river, before, call, "upload")


# Ends of either side


def test_a_client_that_closes_is_forgotten_after_the_grace(river_peer: PeerProcess) -> None:
    with RiverLink(river_peer, HASTY) as river:
        river.connect()
        river.assert_works()
        river.peer.call("close")
        wait_for(lambda: (river.sessions, len(river.statuses)) == (0, 2))


def test_the_calls_of_a_client_that_dies_end_after_the_grace(mortal_river: PeerProcess) -> None:
    with RiverLink(mortal_river, HASTY) as river:
        river.connect()
        calls = [("upload", "holding.gather"), ("subscription", "test.watch")]
        for kind, name in [*calls, ("stream", "test.echo"), ("rpc", "test.hangs")]:
            river.open(kind, name)
        wait_for(lambda: river.calls == 4)
        mortal_river.kill()
        wait_for(lambda: (river.sessions, river.calls) == (0, 0))
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"] * 3)


def test_a_client_that_falls_silent_is_given_up(mortal_river: PeerProcess) -> None:
    often = rpc.Options(heartbeat_interval=0.05, session_disconnect_grace=GRACE)
    with RiverLink(mortal_river, often) as river:
        river.connect()
        river.open("upload", "holding.gather")
        wait_for(lambda: len(river.gate.begun) == 1)
        mortal_river.freeze()
        wait_for(lambda: (river.sessions, river.calls) == (0, 0))
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"])
        mortal_river.kill()


def test_a_server_closes_while_a_client_has_calls(mortal_river: PeerProcess) -> None:
    """What the client makes of it is told above: nothing at all."""
    with RiverLink(mortal_river) as river:
        river.connect()
        for kind, name in [("upload", "holding.gather"), ("stream", "test.echo")]:
            river.open(kind, name)
        wait_for(lambda: len(river.gate.begun) == 2)
        begun = time.monotonic()
        river.server.shutdown(WAIT)
        assert time.monotonic() - begun < WAIT
        assert (river.sessions, river.calls) == (0, 0)
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"] * 2)
        mortal_river.kill()


def test_a_client_that_cannot_renew_its_metadata_is_let_go(mortal_river: PeerProcess) -> None:
    """The package does not know the request for new ones, and ignores it."""
    hasty = rpc.Options(heartbeat_interval=600, handshake_timeout=GRACE)
    with RiverLink(mortal_river, hasty, validate=lambda *given: None) as river:
        river.connect(metadata={})
        river.open("upload", "holding.gather")
        wait_for(lambda: len(river.gate.begun) == 1)
        assert river.server.handler.request_handshake(river.client_id)
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"])
        assert (river.sessions, river.calls) == (0, 0)
        mortal_river.kill()


def test_a_message_that_cannot_be_read_ends_the_session(mortal_river: PeerProcess) -> None:
    """The package leaves out payloads that are null, which nobody can read."""
    with RiverLink(mortal_river) as river:
        river.connect()
        call = river.open("upload", "holding.gather")
        wait_for(lambda: len(river.gate.begun) == 1)
        river.give(call, None)
        wait_for(lambda: river.gate.seen == ["UNEXPECTED_DISCONNECT"])
        assert (river.sessions, river.calls) == (0, 0)
        wait_for(lambda: river.failures)
        assert river.failures == [("invalid_message", "a message without a payload")]
        mortal_river.kill()
