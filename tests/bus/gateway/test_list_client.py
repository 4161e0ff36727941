"""Programs beside a gateway: they call twins and answer them without writing its JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import redis

from wsmux.bus import GatewayClient
from wsmux.bus.client import Client
from wsmux.bus.errors import EXPIRED, FAILED, UNKNOWN_TWIN, BusError, CallTimeout
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.gateway.json_messages import incoming_request
from wsmux.bus.services import ServiceRequest
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import relay_error

from ...helpers.bus.clients import WAIT
from ...helpers.bus.cutting_redis import CuttingRedis
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import lists
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.ports import free_port
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for


@pytest.fixture
def program(server: RedisServer) -> Iterator[GatewayClient]:
    """A program beside the gateway of twin 1."""
    with GatewayClient(database(server, 1)) as made:
        yield made


# Calls


def test_a_program_calls_a_twin(
    alice: Peer, bob: Client, program: GatewayClient, server: RedisServer
) -> None:
    assert program.call(2, "add", [1, 2, 3], timeout=WAIT) == 6
    assert program.call(2, "echo", {"é": None}, timeout=WAIT) == {"é": None}
    # What a gateway keeps of requests expires with them; of the call itself nothing is left.
    assert [key for key in lists(server, 1) if not key.startswith("msgbus.")] == []


def test_threads_call_at_once(alice: Peer, bob: Client, program: GatewayClient) -> None:
    found: dict[int, int] = {}

    def ask(n: int) -> None:
        found[n] = program.call(2, "add", [n, 1], timeout=WAIT)

    threads = [threading.Thread(target=ask, args=[n]) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert found == {n: n + 1 for n in range(16)}


def test_several_twins_are_called_at_once(alice: Peer, bob: Client, program: GatewayClient) -> None:
    found = program.call_all([2, 9, 2], "echo", "x", timeout=WAIT)
    assert found[2] == "x"
    assert isinstance(found[9], BusError)
    assert (found[9].code, found[9].retry_safe) == (UNKNOWN_TWIN, True)
    assert list(found) == [2, 9]
    assert program.call_all([], "echo") == {}


def test_an_error_of_the_twin_is_raised(alice: Peer, bob: Client, program: GatewayClient) -> None:
    def fail(payload: object) -> None:
        raise BusError(7, "no")

    bob.serve({"fail": fail})
    with pytest.raises(BusError, match="no") as caught:
        program.call(2, "fail", timeout=WAIT)
    assert (caught.value.code, caught.value.twin, caught.value.retry_safe) == (7, 2, False)


def test_an_error_of_the_relay_is_raised_at_once(
    relay: StageRelay, alice: Peer, program: GatewayClient
) -> None:
    relay.change = lambda envelope: [relay_error(envelope, "no such twin", envelope.timestamp)]
    with pytest.raises(BusError, match="no such twin") as caught:
        program.call(2, "add", timeout=WAIT)
    assert (caught.value.code, caught.value.twin, caught.value.retry_safe) == (0, None, True)


def test_a_call_without_a_gateway_is_taken_back(
    program: GatewayClient, server: RedisServer
) -> None:
    with pytest.raises(CallTimeout, match="is 'wsmux peer' running") as caught:
        program.call(2, "add", timeout=0.3)
    assert caught.value.retry_safe
    assert lists(server, 1) == {}


def test_a_call_that_is_not_answered_may_have_run(
    alice: Peer, bob: Client, program: GatewayClient
) -> None:
    go_on = threading.Event()
    bob.serve({"hang": lambda payload: go_on.wait(WAIT)})
    with pytest.raises(CallTimeout) as caught:
        program.call(2, "hang", timeout=0.5)
    go_on.set()
    assert (caught.value.code, caught.value.twin, caught.value.retry_safe) == (EXPIRED, 2, False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"timeout": 0}, "a timeout up to 1800 seconds, got 0"),
        ({"timeout": 1801}, "a timeout up to 1800 seconds"),
        ({"command": ""}, "a command is empty"),
        ({"payload": float("nan")}, "JSON"),
        ({"twins": range(1001)}, "at most 1000 twins, got 1001"),
    ],
)
def test_bad_arguments_send_nothing(
    program: GatewayClient, server: RedisServer, changes: dict[str, object], text: str
) -> None:
    given = {"twins": [2], "command": "add", "payload": None} | changes
    with pytest.raises(ValueError, match=text):
        program.call_all(**given)  # type: ignore[arg-type]
    assert lists(server, 1) == {}


def test_redis_that_is_down_is_named() -> None:
    with (
        GatewayClient(f"redis://127.0.0.1:{free_port()}") as program,
        pytest.raises(BusError, match="Redis failed") as caught,
    ):
        program.call(2, "add", timeout=WAIT)
    assert caught.value.code == FAILED


@pytest.mark.parametrize(("command", "reply"), [(b"BLMOVE", b'"ref"'), (b"EXPIRE", b":1")])
def test_an_answer_whose_reply_was_lost_is_found_again(
    alice: Peer, bob: Client, server: RedisServer, command: bytes, reply: bytes
) -> None:
    with (
        CuttingRedis(database(server, 1), command, reply, 1) as cutting,
        GatewayClient(cutting.url) as program,
    ):
        assert program.call(2, "add", [1, 2], timeout=WAIT) == 3
        assert cutting.cut == 1


def test_an_answer_is_looked_for_until_redis_says_what_there_is(
    alice: Peer, bob: Client, server: RedisServer
) -> None:
    """The reply that brings it is lost, and then that to the look at what was moved."""
    with (
        CuttingRedis(database(server, 1), b"LRANGE", b'"ref"', 1) as looking,
        CuttingRedis(looking.url, b"BLMOVE", b'"ref"', 1) as taking,
        GatewayClient(taking.url) as program,
    ):
        assert program.call(2, "add", [1, 2], timeout=WAIT) == 3
        assert (taking.cut, looking.cut) == (1, 1)


@pytest.mark.parametrize("timeout", [WAIT, 3.0])
def test_an_answer_that_redis_moves_after_the_failure_is_found(
    alice: Peer,
    bob: Client,
    program: GatewayClient,
    monkeypatch: pytest.MonkeyPatch,
    timeout: float,
) -> None:
    """Behind the first look; the second one is at the end, if the time is short."""
    move, look = program._redis.blmove, program._redis.lrange
    failed: list[tuple[str, str]] = []
    looks = 0

    def fail_once(answers: str, read: str, wait: float, **ends: str) -> object:
        if failed:
            return move(answers, read, wait, **ends) if looks > 1 else time.sleep(wait)
        failed.append((answers, read))
        raise redis.ConnectionError("the reply is lost")

    def move_behind(*arguments: object) -> object:
        nonlocal looks
        looks += 1
        seen = look(*arguments)
        if looks == 1:
            assert move(*failed[0], WAIT, src="RIGHT", dest="LEFT") is not None
            if timeout < WAIT:
                time.sleep(timeout)
        return seen

    monkeypatch.setattr(program._redis, "blmove", fail_once)
    monkeypatch.setattr(program._redis, "lrange", move_behind)
    assert program.call(2, "add", [1, 2], timeout=timeout) == 3
    assert looks == 2


# Services


def test_a_program_answers_a_twin(alice: Peer, asker: Client, program: GatewayClient) -> None:
    seen: list[ServiceRequest] = []

    def look(payload: object, request: ServiceRequest) -> object:
        seen.append(request)
        return payload

    program.serve({"billing.look": look, "billing.add": sum})
    assert asker.call(1, "billing.add", [1, 2], timeout=WAIT) == 3
    assert asker.call(1, "billing.look", "é", timeout=WAIT, tags="a b") == "é"
    (found,) = seen
    assert (found.source, found.command) == (asker.address, "billing.look")
    assert (found.data, found.schema, found.tags) == ('"é"'.encode(), "application/json", "a b")
    assert 0 < (found.deadline.remaining() or 0) <= WAIT + 1
    assert not found.encrypted


def test_a_function_that_fails_answers_with_its_error(
    alice: Peer, asker: Client, program: GatewayClient, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(payload: object) -> None:
        raise BusError(7, "no")

    program.serve({"refuse": refuse, "divide": lambda payload: 1 / payload})
    with pytest.raises(BusError, match="no") as caught:
        asker.call(1, "refuse", timeout=WAIT)
    assert caught.value.code == 7
    with pytest.raises(BusError, match="ZeroDivisionError") as caught:
        asker.call(1, "divide", 0, timeout=WAIT)
    assert caught.value.code == FAILED
    assert "the function of 'divide' failed" in caplog.text


def test_programs_share_the_requests_of_a_command(
    alice: Peer, asker: Client, server: RedisServer
) -> None:
    both = threading.Barrier(2)
    with (
        GatewayClient(database(server, 1)) as one,
        GatewayClient(database(server, 1)) as other,
    ):
        # With one worker each, the two meet only if each program has taken one request.
        for name, program in (("one", one), ("other", other)):
            program.serve({"meet": lambda payload, name=name: (both.wait(WAIT), name)[1]}, 1)
        futures = [asker.submit(1, "meet", timeout=WAIT) for _ in range(2)]
        assert {future.result() for future in futures} == {"one", "other"}


def test_a_closing_program_finishes_what_it_took(
    alice: Peer, asker: Client, server: RedisServer
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(payload: object) -> str:
        begun.set()
        assert go_on.wait(WAIT)
        return "done"

    program = GatewayClient(database(server, 1))
    program.serve({"slow": slow})
    future = asker.submit(1, "slow", timeout=WAIT)
    assert begun.wait(WAIT)
    closing = threading.Thread(target=program.close, args=[WAIT])
    closing.start()
    wait_for(lambda: program._closing.is_set())
    go_on.set()
    closing.join(WAIT)
    assert future.result() == "done"
    program.close()
    for action in (lambda: program.call(2, "add"), lambda: program.serve({"late": len})):
        with pytest.raises(ValueError, match="is closed"):
            action()


@pytest.mark.parametrize(
    ("text", "said"), [(b"{", "the message is not JSON"), (b'{"ref": "x"}', "'src' is missing")]
)
def test_what_is_no_request_is_dropped(
    alice: Peer,
    asker: Client,
    program: GatewayClient,
    caller: Caller,
    caplog: pytest.LogCaptureFixture,
    text: bytes,
    said: str,
) -> None:
    program.serve({"add": sum}, workers=1)
    caller.redis.lpush("msgbus.add", text)
    assert asker.call(1, "add", [1], timeout=WAIT) == 1
    assert f"a request is not answered: {said}" in caplog.text


def test_an_expired_request_is_not_run(
    program: GatewayClient, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "wsmux.bus")
    ran: list[object] = []
    old = incoming_request("uid", Address(2), "late", 60, b"1", None, None, clock() - 61)
    caller.redis.lpush("msgbus.late", old)
    program.serve({"late": ran.append})
    wait_for(lambda: "a request of twin 2 had expired when it was taken" in caplog.text)
    assert ran == []


@pytest.mark.parametrize(
    ("functions", "workers", "kind"),
    [
        ({"system.local": len}, 1, ValueError),
        ({"": len}, 1, ValueError),
        ({"a b": len}, 1, ValueError),
        ({"add": 1}, 1, TypeError),
        ({"add": len}, 0, ValueError),
    ],
)
def test_what_cannot_be_served_is_refused(
    program: GatewayClient, functions: dict[str, object], workers: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        program.serve(functions, workers)  # type: ignore[arg-type]


def test_a_program_speaks_with_other_programs(
    alice: Peer, bob: Client, program: GatewayClient, server: RedisServer
) -> None:
    """Twin 1 asks itself, over a relay: by this client, of a service that is written by hand."""
    with Service(database(server, 1), "by.hand") as service:
        assert program.call(1, "by.hand", [1], timeout=WAIT) == [1]
    assert service.requests[0]["src"] == "1"
