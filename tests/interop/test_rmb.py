"""Call between the shipped npm package ``@threefold/rmb_direct_client`` and our client.

Everything goes through a relay of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux.bus.errors import BAD_SIGNATURE, BusError, CallTimeout
from wsmux.bus.wire.address import Address

from ..helpers.interop.link import MIB, WAIT
from ..helpers.interop.peer_process import PeerError, PeerProcess
from ..helpers.interop.rmb_link import (
    PAYLOAD,
    SEALED,
    RmbLink,
    by_pair,
    number_of,
    rmb_marks,
    sealing,
)

pytestmark = rmb_marks

sealed = pytest.fixture(params=SEALED)(sealing)


@pytest.fixture
def link(rmb_peer: PeerProcess) -> Iterator[RmbLink]:
    """Run one relay."""
    with RmbLink(rmb_peer) as made:
        made.relay()
        yield made


# Who calls whom


@by_pair
def test_npm_calls_a_service_of_ours(link: RmbLink, npm: str, ours: str, sealed: bool) -> None:
    asked = link.serving(ours)
    caller = link.npm(npm, session="calls")
    assert caller.call(number_of(ours), "echo", PAYLOAD) == PAYLOAD
    (request,) = asked
    assert request.source == Address(number_of(npm), "calls")
    assert request.encrypted is sealed
    assert request.schema == "application/json"
    assert [answer["sealed"] for answer in caller.answers()] == [sealed]


@by_pair
def test_a_client_of_ours_calls_a_service_of_npm(
    link: RmbLink, npm: str, ours: str, sealed: bool
) -> None:
    service = link.npm(npm)
    caller = link.ours(ours, session="calls")
    assert caller.call(number_of(npm), "echo", PAYLOAD, timeout=WAIT) == PAYLOAD
    (request,) = service.do("requests")
    assert request["verified"] is True
    assert request["sealed"] is sealed
    assert request["source"] == {"twin": number_of(ours), "session": "calls"}


@by_pair
def test_npm_calls_npm_through_our_relay(link: RmbLink, npm: str, ours: str, sealed: bool) -> None:
    service, caller = link.npm(ours), link.npm(npm, session="calls")
    assert caller.call(number_of(ours), "echo", PAYLOAD) == PAYLOAD
    (request,) = service.do("requests")
    assert request["verified"] is True
    assert request["sealed"] is sealed


def test_a_twin_that_published_no_key_is_written_to_in_the_clear(link: RmbLink) -> None:
    asked = link.serving("erin")
    service, caller = link.npm("erin", session="serves"), link.npm("alice")
    assert caller.call(number_of("erin"), "echo", PAYLOAD) == PAYLOAD
    assert [request.encrypted for request in asked] == [False]
    assert link.ours("bob").call("5:serves", "echo", 1, timeout=WAIT) == 1
    assert [request["sealed"] for request in service.do("requests")] == [False]


def test_a_request_without_a_payload_is_answered_with_null(link: RmbLink) -> None:
    asked = link.serving("bob")
    assert link.npm("alice").call(number_of("bob"), "echo") is None
    assert [request.data for request in asked] == [b""]


def test_null_reaches_npm_as_a_payload(link: RmbLink) -> None:
    service = link.npm("alice")
    assert link.ours("bob").call(number_of("alice"), "echo", timeout=WAIT) is None
    assert [request["text"] for request in service.do("requests")] == ["null"]


# Sessions


def test_each_session_of_npm_gets_its_own(link: RmbLink) -> None:
    sessions = (None, "left", "right:with:colons")
    services = {session: link.npm("alice", session=session) for session in sessions}
    caller = link.ours("bob")
    for session in sessions:
        to = Address(number_of("alice"), session)
        assert caller.call(to, "echo", session, timeout=WAIT) == session
    told = {name: [each["text"] for each in s.do("requests")] for name, s in services.items()}
    assert told == {None: ["null"], "left": ['"left"'], sessions[2]: [f'"{sessions[2]}"']}


def test_each_session_of_ours_gets_its_own(link: RmbLink) -> None:
    asked = {name: link.serving("bob", session=name) for name in ("left", "right")}
    caller = link.npm("carol")
    for name in asked:
        assert caller.call(number_of("bob"), "echo", name, session=name) == name
    assert {name: [each.data for each in of] for name, of in asked.items()} == {
        "left": [b'"left"'],
        "right": [b'"right"'],
    }


def test_sessions_of_one_twin_call_each_other(link: RmbLink) -> None:
    link.serving("alice", session="serves")
    caller = link.npm("alice", session="calls")
    assert caller.call(number_of("alice"), "echo", PAYLOAD, session="serves") == PAYLOAD


# Errors


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_npm_is_told_what_went_wrong_in_a_service_of_ours(link: RmbLink, name: str) -> None:
    def refuse(payload: Any) -> None:
        raise BusError(payload, "not today")

    def fail(payload: Any) -> None:
        raise LookupError("no such thing")

    service = link.ours(name)
    service.serve({"refuse": refuse, "fail": fail})
    caller = link.npm("alice")
    for command, payload, text in (
        ("refuse", 42, "42 not today"),
        ("fail", 0, "500 LookupError: no such thing"),
        ("missing", 0, f"500 twin {service.address} serves no 'missing'"),
    ):
        with pytest.raises(PeerError) as caught:
            caller.call(number_of(name), command, payload)
        assert caught.value.error["message"] == text


@by_pair
def test_our_client_is_told_what_went_wrong_in_a_service_of_npm(
    link: RmbLink, npm: str, ours: str
) -> None:
    link.npm(npm)
    with pytest.raises(BusError) as caught:
        link.ours(ours).call(number_of(npm), "fail", "luck", timeout=WAIT)
    assert (caught.value.code, caught.value.message) == (7, 'no "luck"')
    assert caught.value.twin == number_of(npm)


def test_an_answer_of_npm_with_a_wrong_signature_is_refused(link: RmbLink) -> None:
    link.npm("carol")
    with pytest.raises(BusError) as caught:
        link.ours("bob").call(number_of("carol"), "forge", 1, timeout=WAIT)
    assert caught.value.code == BAD_SIGNATURE


def test_a_service_of_npm_that_says_nothing_runs_into_the_timeout(link: RmbLink) -> None:
    service = link.npm("carol")
    with pytest.raises(CallTimeout):
        link.ours("bob").call(number_of("carol"), "silence", 1, timeout=1)
    assert [request["command"] for request in service.do("requests")] == ["silence"]


# Many and much


def test_calls_of_npm_and_ours_cross(link: RmbLink) -> None:
    count = 8
    link.serving("bob")
    peers = [link.npm("alice"), link.npm("carol"), link.npm("dave", session="more")]
    to = {"to": number_of("bob"), "run": "echo", "count": count}
    caller = link.ours("bob", session="calls")
    with ThreadPoolExecutor(len(peers) + 8) as threads:
        theirs = [threads.submit(peer.do, "callMany", **to) for peer in peers]
        ours = [
            threads.submit(caller.call, peer.address, "echo", number, timeout=WAIT)
            for peer in peers
            for number in range(count)
        ]
        assert [each.result(WAIT) for each in ours] == [*range(count)] * len(peers)
        for each in theirs:
            assert each.result(WAIT) == [{"answer": number} for number in range(count)]


def test_a_service_of_ours_works_for_several_callers_at_once(link: RmbLink) -> None:
    callers = [link.npm("alice"), link.npm("carol"), link.npm("carol", session="second")]
    meeting = threading.Barrier(len(callers))
    link.ours("bob").serve({"meet": lambda payload: meeting.wait(WAIT) >= 0})
    promises = [caller.submit(number_of("bob"), "meet", 1) for caller in callers]
    for caller, promise in zip(callers, promises, strict=True):
        assert caller.answer(promise) is True


def test_large_payloads_pass_both_ways(link: RmbLink, sealed: bool) -> None:
    large = "0123456789abcdef" * (MIB // 16)
    link.serving("bob")
    npm = link.npm("carol")
    assert npm.call(number_of("bob"), "echo", large) == large
    assert link.ours("dave").call(number_of("carol"), "echo", large, timeout=WAIT) == large
    (request,) = npm.do("requests")
    assert request["sealed"] is sealed
