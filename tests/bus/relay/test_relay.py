"""Routing by a relay: who gets what, in which order, and what requesters are told."""

from __future__ import annotations

import itertools
import logging
import time

import pytest

from wsmux.bus.relay import router
from wsmux.bus.relay.rate_limiter import FixedWindow
from wsmux.bus.relay.relay import MOST_PENALTY, PENALTY
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.envelope import Kind, digest, error, kind_of, parse, response
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.captured import COMPUTED, NPM
from ...helpers.bus.relays import DOMAIN, Node, Table, ask, identity, metric, relay, served
from ...helpers.raw_peer import WAIT, in_thread, wait_for

NOBODY = Address(3, "nobody")


def test_an_envelope_reaches_its_session_byte_by_byte() -> None:
    with served() as server, Node(server, 1, "a") as one, Node(server, 2, "b") as two:
        envelope = ask(one.address, two.address)
        unknown = b"\xc2\x3e\x03abc"  # field 1000, which nobody knows
        data = envelope.SerializeToString() + unknown
        one.send(data)
        assert two.next() == data


def test_sessions_of_a_twin_are_told_apart() -> None:
    with served() as server, Node(server, 1) as one:
        names = (None, "", "a", "a:b")
        nodes = [Node(server, 2, name) for name in names]
        for node in nodes:
            one.ask(node.address, uid=f"for {node.address}")
        for node in nodes:
            with node:
                assert node.take().uid == f"for {node.address}"
                node.nothing()


def test_a_twin_reaches_itself() -> None:
    with served() as server, Node(server, 1) as one:
        envelope = one.ask(one.address)
        assert one.take() == envelope


def test_envelopes_of_one_sender_keep_their_order() -> None:
    with served() as server, Node(server, 1) as one, Node(server, 2) as two:
        sent = [one.ask(two.address).uid for _ in range(300)]
        assert [two.take().uid for _ in sent] == sent


def test_answers_find_their_way_back() -> None:
    with served() as server, Node(server, 1, "a") as one, Node(server, 2) as two:
        one.ask(two.address)
        asked = two.take()
        two.put(response(asked, two.address, int(time.time()), 60, plain=b"1"))
        two.put(error(asked, two.address, 500, "no", int(time.time()), 60))
        assert [kind_of(one.take()) for _ in range(2)] == [Kind.RESPONSE, Kind.ERROR]


def test_connected_sessions_are_not_looked_up() -> None:
    table = Table()
    with served(relay(table)) as server, Node(server, 1) as one, Node(server, 2) as two:
        two.nothing()  # so the relay knows of its session
        table.down = True
        one.ask(two.address)
        assert two.take()


# What is told to requesters


def told(node: Node, envelope: Envelope) -> str:
    node.put(envelope)
    uid, text = node.refused()
    assert uid == envelope.uid
    return text


@pytest.mark.parametrize(
    "source", [Address(2), Address(1, "other"), Address(1, ""), Address(1), None], ids=str
)
def test_a_wrong_source_is_told_to_the_connection(source: Address | None) -> None:
    with served() as server, Node(server, 1, "mine") as one, Node(server, 2) as two:
        envelope = ask(one.address, two.address)
        envelope.ClearField("source")
        if source is not None:
            put_address(envelope.source, source)
        assert told(one, envelope) == router.WRONG_SOURCE
        two.nothing()


@pytest.mark.parametrize("destination", [None, Address(0), Address(0, "x")], ids=str)
def test_a_missing_destination_is_told(destination: Address | None) -> None:
    with served() as server, Node(server, 1) as one:
        assert told(one, ask(one.address, destination)) == router.MISSING_DESTINATION


def test_an_unknown_twin_is_told() -> None:
    with served() as server, Node(server, 1) as one:
        assert told(one, ask(one.address, Address(77))) == router.UNKNOWN_TWIN


@pytest.mark.parametrize("session", ["@", "@!", "@" + "a" * 65])
def test_a_destination_that_no_connection_may_have_is_told(session: str) -> None:
    with served() as server, Node(server, 1) as one:
        assert told(one, ask(one.address, Address(2, session))) == router.NO_SESSION


def test_a_twin_without_relays_is_told() -> None:
    table = Table({1: (DOMAIN,), 2: ()})
    with served(relay(table)) as server, Node(server, 1) as one:
        assert told(one, ask(one.address, Address(2))) == router.NO_RELAYS


def test_a_directory_that_is_down_is_told() -> None:
    table = Table()
    with served(relay(table)) as server, Node(server, 1) as one:
        table.down = True
        assert "the table is down" in told(one, ask(one.address, NOBODY))
        table.down = False
        assert told(one, ask(one.address, NOBODY, tags="fail-fast")) == router.OFFLINE


def test_fail_fast_is_told_when_the_destination_is_away() -> None:
    with served() as server, Node(server, 1) as one:
        assert told(one, ask(one.address, NOBODY, tags="fail-fast")) == router.OFFLINE
        with Node(server, NOBODY.twin, NOBODY.session) as two:
            two.nothing()
            one.ask(NOBODY, tags="fail-fast")
            assert two.take().tags == "fail-fast"


@pytest.mark.parametrize("life", [0, -5])
def test_an_expired_request_is_told(life: int) -> None:
    with served() as server, Node(server, 1) as one, Node(server, 2) as two:
        envelope = ask(one.address, two.address, now=time.time() - 5, life=5 + life)
        assert told(one, envelope) == router.EXPIRED
        two.nothing()


def test_twins_of_other_relays_need_a_federation() -> None:
    table = Table({1: (DOMAIN,), 2: ("other.test",)})
    with served(relay(table)) as server, Node(server, 1) as one:
        assert "does not forward to other relays" in told(one, ask(one.address, Address(2)))


def test_failed_answers_vanish() -> None:
    with served() as server, Node(server, 1) as one:
        asked = ask(Address(77), one.address)
        one.put(response(asked, one.address, int(time.time()), 60))
        one.put(error(asked, one.address, 500, "no", int(time.time()), 60))
        one.nothing()
        reason = f'relay_message_refused_total{{reason="{router.UNKNOWN_TWIN}"}}'
        assert metric(server, reason) == 2


class Handed:
    """Stand for a federation."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes, tuple[str, ...]]] = []

    def submit(self, envelope: Envelope, data: bytes, domains: tuple[str, ...]) -> None:
        self.got.append((envelope.uid, data, domains))

    def close(self, timeout: float | None = None) -> None:
        self.got.append(("closed", b"", ()))


def test_twins_of_other_relays_are_handed_to_the_federation() -> None:
    handed = Handed()
    table = Table({1: (DOMAIN,), 2: ("a.test", "b.test")})
    with (
        served(relay(table, federate=lambda relay: handed)) as server,
        Node(server, 1) as one,
    ):
        envelope = one.ask(Address(2))
        one.nothing()
    assert handed.got == [
        (envelope.uid, envelope.SerializeToString(), ("a.test", "b.test")),
        ("closed", b"", ()),
    ]


# Pings


def test_the_ping_of_npm_is_answered_as_npm_awaits() -> None:
    who = NPM["ping"]["from"]
    with served() as server, Node(server, who["twin"], who["connection"]) as node:
        node.send(bytes.fromhex(NPM["ping"]["serialized_hex"]))
        expected = bytes.fromhex(COMPUTED["pong_for_ping"]["serialized_hex"])
        assert node.take() == parse(expected)


def test_a_ping_for_somebody_else_is_answered_by_the_relay() -> None:
    with served() as server, Node(server, 1) as one, Node(server, 2) as two:
        ping = ask(one.address, two.address)
        ping.ping.SetInParent()
        one.put(ping)
        assert kind_of(one.take()) is Kind.PONG
        two.nothing()


def test_a_pong_that_would_be_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsmux.bus.relay.relay.MAX_ENVELOPE", 1000)
    with served() as server, Node(server, 1) as one:
        ping = Envelope(plain=bytes(980))
        put_address(ping.source, one.address)
        ping.ping.SetInParent()
        one.put(ping)
        one.nothing()


# The limiter


def test_more_than_the_limit_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "wsmux.bus")
    made = relay(limiter=FixedWindow(3, 10_000, window=1e12))
    with served(made) as server, Node(server, 1, "a") as one, Node(server, 2) as two:
        for _ in range(3):
            one.ask(two.address)
        assert [told(one, ask(one.address, two.address)) for _ in range(2)] == [router.LIMITED] * 2
        one.put(response(ask(two.address, one.address), one.address, int(time.time()), 60))
        for _ in range(3):
            two.take()
        two.nothing()
        with Node(server, 1, "b") as other:
            assert told(other, ask(other.address, two.address)) == router.LIMITED
    lines = [record.getMessage() for record in caplog.records if "limit" in record.getMessage()]
    assert lines
    assert all("twin 1 " in line for line in lines)


def test_the_limit_comes_before_everything_else() -> None:
    with (
        served(relay(limiter=FixedWindow(1, 10_000, window=1e12))) as server,
        Node(server, 1) as one,
    ):
        one.put(ask(one.address, one.address))
        one.take()
        assert told(one, ask(Address(2), None)) == router.LIMITED


def test_a_twin_above_its_limit_is_read_ever_more_slowly() -> None:
    pauses: list[float] = []
    made = relay(limiter=FixedWindow(2, 1000, window=1e12), pause=pauses.append)
    with served(made) as server, Node(server, 1) as one, Node(server, 2) as two:
        for size in (1000, 1000, 1, 1, 1, 1, 1, 1, 1, 1):
            one.ask(two.address, plain=bytes(size))
        for _ in range(8):
            one.refused()
        for _ in range(2):
            two.take()
    assert pauses == [
        *(PENALTY, 2 * PENALTY),  # above the limit of bytes, and so before what passed
        *(PENALTY, 2 * PENALTY, 4 * PENALTY, 8 * PENALTY),
        *(MOST_PENALTY, MOST_PENALTY),
    ]


def test_a_message_above_the_limit_of_bytes_does_not_count() -> None:
    made = relay(limiter=FixedWindow(1, 1000, window=1e12))
    with served(made) as server, Node(server, 1) as one:
        assert told(one, ask(one.address, one.address, plain=bytes(1000))) == router.LIMITED
        assert one.ask(one.address) == one.take()


def test_refusals_of_twins_are_logged_once_a_second_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "wsmux.bus")
    made = relay(limiter=FixedWindow(1, 10_000, window=1e12))
    assert [made._allowed(1, 1, 0.0) for _ in range(15)] == [True] + [False] * 14
    assert not made._allowed(2, 10_001, 0.0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["twin 1 exceeds its rate limit; its messages are dropped"]


# Queues


def test_what_comes_for_an_absent_session_waits_in_order() -> None:
    with served() as server, Node(server, 1) as one:
        sent = [one.ask(NOBODY).uid for _ in range(200)]
        one.nothing()
        with Node(server, NOBODY.twin, NOBODY.session) as two:
            assert [two.take().uid for _ in sent] == sent
            one.ask(two.address, uid="behind")
            assert two.take().uid == "behind"
        with Node(server, NOBODY.twin, NOBODY.session) as two:
            two.nothing()


def test_what_ran_out_in_a_queue_is_told_to_the_requester(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as server, Node(server, 1, "a") as one:
        short = one.ask(NOBODY, life=60)
        one.ask(NOBODY, life=3000)
        one.nothing()
        now = time.time()
        monkeypatch.setattr("wsmux.bus.relay.sessions.time.time", lambda: now + 61)
        with Node(server, NOBODY.twin, NOBODY.session) as two:
            assert two.take().uid != short.uid
            assert one.refused() == (short.uid, router.EXPIRED)


def test_a_message_for_a_session_that_just_left_waits_for_it() -> None:
    with served() as server, Node(server, 1) as one:
        with Node(server, 2) as two:
            two.nothing()
        wait_for(lambda: len(server.relay.sessions) == 1, "the end of the session")
        one.ask(Address(2), uid="later")
        with Node(server, 2) as two:
            assert two.take().uid == "later"


def test_many_sessions_get_what_is_for_them() -> None:
    with served() as server:
        nodes = [Node(server, 1 + n % 9, f"s{n}") for n in range(50)]
        sender = nodes[0]
        for _, node in itertools.product(range(10), nodes):
            sender.ask(node.address, uid=str(node.address))
        for node in nodes:
            assert [node.take().uid for _ in range(10)] == [str(node.address)] * 10
        for node in nodes:
            with node:
                node.nothing()


def test_many_senders_lose_nothing() -> None:
    senders, count = 4, 150
    with served() as server, Node(server, 9) as target:
        nodes = [Node(server, 1 + n) for n in range(senders)]

        def send(node: Node) -> list[str]:
            return [node.ask(target.address).uid for _ in range(count)]

        sending = [in_thread(send, node) for node in nodes]
        got: dict[int, list[str]] = {node.address.twin: [] for node in nodes}
        for _ in range(senders * count):
            envelope = target.take()
            got[envelope.source.twin].append(envelope.uid)
        for node, sent in zip(nodes, sending, strict=True):
            with node:
                assert got[node.address.twin] == sent.result(WAIT)


def test_signatures_are_the_twins_own_affair() -> None:
    with served() as server, Node(server, 1) as one, Node(server, 2) as two:
        envelope = ask(one.address, two.address)
        envelope.signature = identity(5).sign(digest(envelope))
        one.put(envelope)
        assert two.take().signature == envelope.signature
