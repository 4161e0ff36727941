"""Connect the shipped npm package ``@threefold/rmb_direct_client`` to our relay, and to two."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux.bus.errors import FROM_RELAY, BusError, TokenRefused
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.tokens import check_token

from ..helpers.bus.captured import PEOPLE, TWINS, identity
from ..helpers.interop.link import WAIT
from ..helpers.interop.peer_process import PeerError, PeerProcess
from ..helpers.interop.rmb_link import NpmTwin, RmbLink, number_of, rmb_marks
from ..helpers.waiting import wait_for

pytestmark = rmb_marks

STRANGER = 99

# Seconds that tokens of the package live.
TOKEN_LIFE = 1000


@pytest.fixture
def link(rmb_peer: PeerProcess) -> Iterator[RmbLink]:
    with RmbLink(rmb_peer) as made:
        yield made


def failure(caller: NpmTwin, to: int, payload: Any = 1, **fields: Any) -> str:
    """Make a call that must fail; return the error's text."""
    with pytest.raises(PeerError) as caught:
        caller.call(to, "echo", payload, **fields)
    text: str = caught.value.error["message"]
    return text


# Who it is


@pytest.mark.parametrize("name", ["alice", "carol", "dave", "erin"])
def test_npm_publishes_the_key_that_we_derive(link: RmbLink, name: str) -> None:
    link.relay()
    (update,) = link.npm(name).do("state")["updates"]
    assert update["pk"] == f"0x{identity(name).e2e_public.hex()}"


@pytest.mark.parametrize("name", ["alice", "carol"])
def test_a_token_of_npm_lives_for_a_thousand_seconds(link: RmbLink, name: str) -> None:
    link.relay()
    token = link.npm(name, session="mine").do("token")["token"]
    now = int(time.time())
    claims = check_token(token, now, TWINS.get)
    assert (claims.twin, claims.session) == (number_of(name), "mine")
    assert claims.expires - claims.issued == TOKEN_LIFE
    with pytest.raises(TokenRefused):
        check_token(token, now + TOKEN_LIFE + 60, TWINS.get)


def test_a_token_of_another_account_is_refused(link: RmbLink) -> None:
    relay = link.relay()
    link.twins.twins[number_of("alice")] = TWINS[number_of("bob")]._replace(id=number_of("alice"))
    with pytest.raises(PeerError, match="Unable to establish a connection"):
        link.npm("alice")
    assert len(relay.relay.sessions) == 0


# Pings


def test_a_ping_of_npm_is_answered_as_the_known_relay_does(link: RmbLink) -> None:
    link.relay()
    twin = link.npm("alice", session="mine")
    pong = twin.do("ping")
    mine = {"twin": number_of("alice"), "session": "mine"}
    assert (pong["kind"], pong["destination"], pong["plain"]) == ("pong", mine, "hello world")
    assert pong["source"] == {"twin": 0, "session": None}
    assert pong["signed"] == 0


def test_npm_stays_connected_while_its_pings_are_answered(
    link: RmbLink, rmb_peer: PeerProcess
) -> None:
    link.relay()
    rmb_peer.call("hurryPings", ms=20)
    twin = link.npm("alice")
    assert twin.do("waitPongs", count=20)["pongs"] >= 20
    assert twin.do("state")["connections"] == 1


# Connections that end


def test_npm_connects_anew_when_the_relay_was_away(link: RmbLink) -> None:
    relay = link.relay()
    twin = link.npm("alice")
    relay.shutdown(WAIT)
    twin.do("waitDisconnected")
    link.relay(port=relay.port)
    link.serving("bob")
    assert twin.call(number_of("bob"), "echo", 1) == 1
    assert twin.do("state")["connections"] > 1


def test_the_later_of_two_equal_sessions_is_the_one(link: RmbLink) -> None:
    link.relay()
    link.serving("bob")
    first = link.npm("alice", session="same")
    second = link.npm("alice", session="same")
    first.do("waitDisconnected")
    assert second.call(number_of("bob"), "echo", 1) == 1


def test_a_session_that_npm_closes_leaves_the_relay(link: RmbLink) -> None:
    relay = link.relay()
    link.npm("alice", session="mine").do("close")
    wait_for(lambda: len(relay.relay.sessions) == 0, WAIT)


# Errors of the relay


def test_npm_is_told_of_a_twin_that_nobody_knows(link: RmbLink) -> None:
    link.relay()
    caller = link.npm("alice", strangers=[STRANGER])
    assert failure(caller, STRANGER) == "0 unknown twin destination"


def test_npm_is_told_of_a_twin_without_relays(link: RmbLink) -> None:
    link.place("bob")
    link.relay()
    caller = link.npm("alice")
    assert failure(caller, number_of("bob")) == "0 relay info is not set for this twin"


def test_npm_is_told_that_a_twin_is_away_where_it_asks_for_that(link: RmbLink) -> None:
    link.relay()
    caller = link.npm("alice")
    assert failure(caller, number_of("bob"), tags="fail-fast") == "0 destination offline"


def test_npm_is_told_of_its_limit(link: RmbLink) -> None:
    link.relay(limit=(1000, 4096))
    caller = link.npm("alice")
    text = failure(caller, number_of("bob"), payload="." * 4096)
    assert text == "0 exceeded rate limits, dropping message"


def test_our_client_is_told_that_npm_has_left(link: RmbLink) -> None:
    relay = link.relay()
    link.npm("alice").do("close")
    wait_for(lambda: len(relay.relay.sessions) == 0, WAIT)
    with pytest.raises(BusError) as caught:
        link.ours("bob").call(number_of("alice"), "echo", 1, timeout=WAIT, tags="fail-fast")
    assert (caught.value.code, caught.value.message) == (FROM_RELAY, "destination offline")


def test_what_npm_asked_waits_until_the_service_comes(link: RmbLink) -> None:
    relay = link.relay()
    caller = link.npm("alice")
    promise = caller.submit(number_of("bob"), "echo", "late")
    caller.do("ping")  # takes the same way, so that the request was read by now
    assert relay.relay.sessions.get(Address(number_of("bob"))) is None
    link.serving("bob")
    assert caller.answer(promise) == "late"


# Two relays


@pytest.fixture
def relays(link: RmbLink) -> tuple[RelayServer, RelayServer]:
    """Run two relays; twins 1 and 2 belong to the first, the others to the second."""
    for name in PEOPLE:
        link.place(name, "a.test" if number_of(name) <= 2 else "b.test")
    return link.pair_of_relays()


@pytest.mark.parametrize(("first", "second"), [("alice", "carol"), ("bob", "dave")])
def test_calls_cross_between_the_relays(
    link: RmbLink, relays: tuple[RelayServer, RelayServer], first: str, second: str
) -> None:
    here, there = relays
    asked = link.serving(first, here)
    caller = link.npm(second, "calls", there)
    assert caller.call(number_of(first), "echo", "from npm") == "from npm"
    assert [(each.source.session, each.encrypted) for each in asked] == [("calls", True)]
    service = link.npm(second, None, there)
    ours = link.ours(first, here, session="calls")
    assert ours.call(number_of(second), "echo", "from ours", timeout=WAIT) == "from ours"
    (request,) = service.do("requests")
    assert (request["verified"], request["sealed"]) == (True, True)


def test_npm_calls_npm_between_the_relays(
    link: RmbLink, relays: tuple[RelayServer, RelayServer]
) -> None:
    here, there = relays
    link.npm("carol", None, there)
    caller = link.npm("alice", "calls", here)
    assert caller.call(number_of("carol"), "echo", "hello") == "hello"
    (first, second) = (relay.relay.metrics.text().decode() for relay in relays)
    assert 'federation_message_success{relay="b.test"} 1.0' in first  # the question
    assert 'federation_message_success{relay="a.test"} 1.0' in second  # and the answer


def test_npm_is_told_that_a_twin_of_the_other_relay_is_away(
    link: RmbLink, relays: tuple[RelayServer, RelayServer]
) -> None:
    caller = link.npm("alice", "calls", relays[0])
    text = failure(caller, number_of("carol"), tags="fail-fast")
    assert text == "0 remote relay rejected permanently: destination offline"


def test_an_error_of_npm_crosses_between_the_relays(
    link: RmbLink, relays: tuple[RelayServer, RelayServer]
) -> None:
    here, there = relays
    link.npm("carol", None, there)
    with pytest.raises(BusError) as caught:
        link.ours("alice", here).call(number_of("carol"), "fail", 1, timeout=WAIT)
    assert (caught.value.code, caught.value.message) == (7, "no 1")
