"""The record of the twin, Redis that goes, and gateways that start anew."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import EXPIRED, BusError
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.session.identity_session import clock
from wsmux.bus.session.relay_connection import LinkState
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.clients import ALICE, BOB, WAIT, all_connected
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import gateway, lists
from ...helpers.bus.people import Table, person
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for


def test_the_record_is_brought_up_to_date(server: RedisServer, twins: Table) -> None:
    twins.writable = True
    twins.twins[1] = ALICE.record(relays=("old.test",), key=False)
    with StageRelay() as relay:
        url = relay.url.replace("127.0.0.1", "localhost")
        with Peer(ALICE.identity, url, twins, database(server, 1)):
            wait_for(lambda: twins.twins[1] == ALICE.record(relays=("localhost",)))


def test_a_record_that_cannot_be_written_is_told(
    server: RedisServer, twins: Table, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = f'"0x{ALICE.identity.e2e_public.hex()}"'
    twins.twins[1] = ALICE.record(key=False)
    with Peer(ALICE.identity, "ws://localhost:1", twins, database(server, 1)):
        wait_for(lambda: wanted in caplog.text)
    assert '"relays": ["localhost"]' in caplog.text


def test_the_gateway_serves_while_the_directory_is_down(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller
) -> None:
    twins.down = True
    with gateway(server, relay, twins, ALICE):
        assert "down" in caller.ask("echo", [2])["err"]["message"]


def test_a_record_wants_names_of_relays(server: RedisServer, twins: Table) -> None:
    with pytest.raises(ValueError, match="no name to put on record"):
        Peer(ALICE.identity, "ws://127.0.0.1:1", twins, database(server, 1), twin=1)


def test_an_identity_without_a_twin_is_refused(server: RedisServer, twins: Table) -> None:
    with pytest.raises(BusError, match="no twin has the account"):
        Peer(person(9).identity, "ws://relay.test", twins, database(server, 1))


# Redis that goes, and gateways that start anew


def test_redis_may_go_and_come(tmp_path: Any, relay: StageRelay, twins: Table, bob: Client) -> None:
    with RedisServer(tmp_path, durable=True) as own, gateway(own, relay, twins, ALICE):
        with Caller(database(own, 1)) as caller:
            assert caller.ask("echo", [2], 1)["dat"] == b"1"
        own.kill()
        own.start()
        with Caller(database(own, 1)) as caller:
            assert caller.ask("echo", [2], 2)["dat"] == b"2"


def test_an_answer_waits_for_redis(tmp_path: Any, relay: StageRelay, twins: Table) -> None:
    with RedisServer(tmp_path, durable=True) as own, gateway(own, relay, twins, ALICE):
        gate, asked = threading.Event(), threading.Event()
        with Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as bob:

            def wait(payload: object) -> bool:
                asked.set()
                return gate.wait(WAIT)

            bob.serve({"wait": wait})
            with Caller(database(own, 1)) as caller:
                ret = caller.push("wait", [2])
                assert asked.wait(WAIT)
            own.kill()
            gate.set()
            wait_for(lambda: len(relay.passed) == 2)
            own.start()
            with Caller(database(own, 1)) as caller:
                assert caller.answer(ret)["dat"] == b"true"


def test_a_gateway_without_redis_leaves_the_session_to_another(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, bob: Client
) -> None:
    with gateway(server, relay, twins, ALICE):
        served = len(relay.tokens)
        with Peer(
            ALICE.identity, relay.url, twins, "redis://127.0.0.1:9", twin=1, update=False
        ) as broken:
            wait_for(lambda: "Redis" in broken.relays()[0].reason)
            assert caller.ask("echo", [2], 1)["dat"] == b"1"
            assert len(relay.tokens) == served
            assert not all_connected(broken)


def test_a_gateway_stays_away_while_redis_is_away(
    tmp_path: Any, relay: StageRelay, twins: Table, bob: Client
) -> None:
    with RedisServer(tmp_path, durable=True) as own, gateway(own, relay, twins, ALICE) as made:
        own.kill()
        wait_for(lambda: Address(1) not in relay.connected())
        wait_for(lambda: "Redis" in made.relays()[0].reason)
        assert made.relays()[0].failures == 0
        lost = bob.submit(1, "echo", 2, timeout=WAIT)
        own.start()
        wait_for(lambda: Address(1) in relay.connected())
        with Service(database(own, 1), "echo"):
            assert lost.result(WAIT) == 2


def test_what_a_gateway_left_is_taken_up(
    server: RedisServer, relay: StageRelay, twins: Table, bob: Client, caller: Caller
) -> None:
    ret = caller.push("echo", [2], 1)
    caller.redis.lmove("msgbus.system.local", "msgbus.system.local.taken", "RIGHT", "LEFT")
    with gateway(server, relay, twins, ALICE):
        assert caller.answer(ret)["dat"] == b"1"
        wait_for(lambda: lists(server, 1) == {})


def test_what_has_no_answer_is_sent_again_and_run_once(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller
) -> None:
    runs: list[object] = []
    held: list[Envelope] = []

    def hold(envelope: Envelope) -> list[Envelope]:
        if envelope.HasField("response") and not held:
            held.append(envelope)
            return []
        return [envelope]

    relay.change = hold
    with Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as service:
        service.serve({"count": lambda payload: runs.append(payload)})
        with gateway(server, relay, twins, ALICE):
            ret = caller.push("count", [2], 7)
            wait_for(lambda: held)
        with gateway(server, relay, twins, ALICE):
            assert caller.answer(ret)["dat"] == b"null"
            relay.deliver(held[0])
            assert caller.ask("rmb.version", [99])["err"]
            wait_for(lambda: lists(server, 1) == {})
    assert runs == [7]


def test_closing_leaves_what_cannot_be_sent(
    server: RedisServer, relay: StageRelay, twins: Table, bob: Client, caller: Caller
) -> None:
    with StageRelay() as gone:
        gone.refusal = (500, "not now")
        with gateway(server, gone, twins, ALICE):
            ret = caller.push("echo", [2], 1)
            wait_for(lambda: len(lists(server, 1)) == 2)
    with gateway(server, relay, twins, ALICE):
        assert caller.answer(ret)["dat"] == b"1"


def test_a_relay_that_refuses_is_shown(server: RedisServer, twins: Table) -> None:
    with StageRelay() as relay:
        relay.refusal = (401, "there is no twin 1")
        with gateway(server, relay, twins, ALICE) as made:
            wait_for(lambda: "there is no twin 1" in made.relays()[0].reason)
    assert made.address == Address(1)


def test_another_relay_takes_over(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller
) -> None:
    with StageRelay() as second:
        urls = [relay.url, second.url]
        with (
            Peer(ALICE.identity, urls, twins, database(server, 1), twin=1, update=False) as made,
            Client(BOB.identity, urls, twins, twin=2, gateway=True) as bob,
        ):
            bob.serve({"echo": lambda payload: payload})
            wait_for(lambda: all_connected(made, bob))
            assert caller.ask("echo", [2], 1)["dat"] == b"1"
            assert len(relay.passed) == 2
            relay.stop()
            # A request that is sent before both know is lost with the relay, and not sent again.
            wait_for(lambda: lost(made, relay) and lost(bob, relay))
            assert caller.ask("echo", [2], 2)["dat"] == b"2"
            assert len(second.passed) >= 2


def lost(whose: Client | Peer, relay: StageRelay) -> bool:
    """Return whether one knows that it has no connection to a relay."""
    return all(
        each.state is not LinkState.CONNECTED
        for each in whose.relays()
        if each.url.startswith(relay.url)
    )


def test_nothing_is_said_of_secrets(
    alice: Peer, bob: Client, caller: Caller, caplog: pytest.LogCaptureFixture, relay: StageRelay
) -> None:
    caplog.set_level(logging.DEBUG)
    caller.ask("echo", [2], "payload")
    relay.cut()
    wait_for(lambda: Address(1) in relay.connected())
    assert "eyJ" not in caplog.text


def test_what_cannot_be_read_does_not_stop_a_start(
    server: RedisServer, relay: StageRelay, twins: Table, bob: Client, caller: Caller
) -> None:
    for key in ("msgbus.backlog.u", "msgbus.system.outbox.u"):
        caller.redis.set(key, b"\xff")
    caller.push("echo", [2], 1)
    caller.redis.lmove("msgbus.system.local", "msgbus.system.local.taken", "RIGHT", "LEFT")
    with gateway(server, relay, twins, ALICE):
        assert caller.ask("echo", [2], 2)["dat"] == b"2"
        wait_for(lambda: caller.redis.dbsize() == 3)


def test_what_expired_meanwhile_is_told(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller
) -> None:
    relay.change = lambda envelope: []
    with gateway(server, relay, twins, ALICE):
        ret = caller.push("echo", [2], 1, exp=3)
        wait_for(lambda: relay.passed)
    wait_for(lambda: envelopes.time_left(relay.passed[0], clock()) <= 0)
    with gateway(server, relay, twins, ALICE):
        assert caller.answer(ret)["err"]["code"] == EXPIRED
    assert len(relay.passed) == 1


def test_a_request_that_gets_no_answer_is_told_when_it_expires(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller
) -> None:
    relay.change = lambda envelope: []
    with gateway(server, relay, twins, ALICE):
        assert caller.ask("echo", [2], 1, exp=2)["err"]["code"] == EXPIRED
        wait_for(lambda: lists(server, 1) == {})
    assert len(relay.passed) == 1


def test_what_has_no_answer_is_sent_again_when_the_relay_is_lost(
    server: RedisServer, relay: StageRelay, twins: Table, bob: Client, caller: Caller
) -> None:
    def lose(envelope: Envelope) -> list[Envelope]:
        return [] if len(relay.passed) == 1 else [envelope]

    relay.change = lose
    with gateway(server, relay, twins, ALICE):
        ret = caller.push("echo", [2], 7)
        wait_for(lambda: relay.passed)
        relay.cut()
        assert caller.answer(ret)["dat"] == b"7"
    first, second = (each for each in relay.passed if each.HasField("request"))
    assert first == second


def test_a_request_that_comes_again_after_a_restart_is_answered_again_and_run_once(
    server: RedisServer, relay: StageRelay, twins: Table, asker: Client
) -> None:
    with Service(database(server, 1), "same") as service:
        with gateway(server, relay, twins, ALICE):
            assert asker.call(1, "same", 7, timeout=WAIT) == 7
        asked, answer = relay.passed
        with gateway(server, relay, twins, ALICE):
            relay.deliver(asked)
            wait_for(lambda: relay.passed[2:] == [answer])
            assert asker.call(1, "same", 8, timeout=WAIT) == 8
        assert len(service.requests) == 2


def test_a_list_that_is_none_is_told(
    server: RedisServer, relay: StageRelay, twins: Table, caller: Caller, asker: Client
) -> None:
    caller.redis.set("msgbus.echo", "text")
    with gateway(server, relay, twins, ALICE), pytest.raises(BusError, match="Redis refused"):
        asker.call(1, "echo", timeout=WAIT)
