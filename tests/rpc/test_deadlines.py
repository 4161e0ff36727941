"""A caller tells the server how long it waits, and the call ends there when that time is up."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc import testing
from wsmux.rpc.engine.server_calls import OUT_OF_TIME
from wsmux.rpc.wire.envelope import timeout_field
from wsmux.runtime.deadline import block_end
from wsmux.testing import faulty_pair

from ..helpers.inside import alarm_of, calls_of, expiries_of, session_records_of, workers_held
from ..helpers.rpc.clients import session_of
from ..helpers.rpc.four_kinds import KINDS, Part, joined, staged
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import CANCEL, CLOSED, OPEN, Fields, RawRiver, RawServer, ok
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for, wait_for_value

SOON = 0.1  # seconds; where a handler must have begun by then, time stands still until it has
OVER = 2 * SOON  # each call that a handler passes its time to rounds it up to whole milliseconds

EXPIRED = {"ok": False, "payload": {"code": "DEADLINE_EXCEEDED", "message": OUT_OF_TIME}}

every_codec = pytest.mark.parametrize("codec", ["json", "msgpack", "protobuf"])


def begun(client: rpc.Client, kind: rpc.Kind, timeout: float | None) -> Any:
    """Begin a call of any kind."""
    ways = {
        rpc.Kind.RPC: client.submit,
        rpc.Kind.UPLOAD: client.upload,
        rpc.Kind.SUBSCRIPTION: client.subscribe,
        rpc.Kind.STREAM: client.stream,
    }
    return ways[kind]("test", kind, None, timeout)


def ended(call: Any) -> Any:
    """Wait for the outcome of a call of any kind."""
    if isinstance(call, rpc.PendingCall):
        return call.result()
    return call.finish() if isinstance(call, rpc.Upload) else call.read()


# What a handler is told


def left_of(seen: list[float | None]) -> Callable[[Part], Any]:
    def act(part: Part) -> None:
        seen.append(part.ctx.deadline.remaining())

    return act


@each_case
@every_codec
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_finds_the_timeout_of_its_call(kind: rpc.Kind, codec: str) -> None:
    seen: list[float | None] = []
    service = staged(left_of(seen))
    with testing.linked([service], {"codec": codec}, codec=codec) as link:
        begun(link.client, kind, 60.0)
        wait_for(lambda: seen)
    (left,) = seen
    assert left is not None
    assert 0 < left <= 60.0


def test_a_handler_finds_the_timeout_of_its_client_and_of_a_block() -> None:
    seen: list[Any] = []
    with testing.linked([staged(left_of(seen))], timeout=60.0) as link:
        link.client.rpc("test", "rpc", None)
        with wsmux.deadline(30):
            link.client.rpc("test", "rpc", None)
        link.client.rpc("test", "rpc", None, math.inf)
    assert 30 < seen[0] <= 60
    assert 0 < seen[1] <= 30
    assert seen[2] is None


def test_what_goes_on_after_a_block_is_not_limited_by_it() -> None:
    seen: list[Any] = []
    with testing.linked([staged(left_of(seen))]) as link, wsmux.deadline(30):
        link.client.submit("test", "rpc", None).result()
        list(link.client.subscribe("test", "subscription", None))
    assert seen == [None, None]


def test_a_handler_run_alone_finds_the_timeout_of_the_test() -> None:
    seen: list[Any] = []
    testing.call(staged(left_of(seen)), "rpc", timeout=60.0)
    assert 0 < seen[0] <= 60


def test_a_handler_run_alone_ends_with_the_timeout_of_the_test() -> None:
    def reads(part: Part) -> Any:
        with wsmux.deadline(WAIT):
            threading.Event().wait(part.ctx.deadline.remaining())
        raise TimeoutError("a wait in the handler")

    with pytest.raises(TimeoutError, match="test.rpc did not end in 0.05 s"):
        testing.call(staged(reads), "rpc", timeout=0.05)


@pytest.mark.parametrize(
    ("seconds", "sent"),
    [(0.0, 0), (-1.0, 0), (0.0001, 1), (1.0, 1000), (1.0001, 1001), (1e300, 2**53 - 1)],
)
def test_what_is_sent_is_never_shorter_than_what_is_left(seconds: float, sent: int) -> None:
    assert timeout_field(seconds) == sent
    assert timeout_field(math.inf) == 2**53 - 1


# What a handler calls


def run_out(client: rpc.Client, clock: testing.Clock, began: list[Any]) -> None:
    """Call, and let the time of the call pass once its handler has begun and waits."""
    call = client.submit("test", "rpc", None, SOON)
    wait_for(lambda: began)
    clock.advance(OVER)
    with pytest.raises(TimeoutError, match="test.rpc did not answer in time"):
        call.result()


def test_calls_of_a_handler_end_with_the_caller_s_time(clock: testing.Clock) -> None:
    seen: list[Any] = []
    ends: list[BaseException] = []

    def passes_on(part: Part) -> Any:
        try:
            return behind.client.rpc("test", "rpc", None, WAIT)
        except TimeoutError as error:
            ends.append(error)
            raise

    def lasts(part: Part) -> None:
        seen.append(part.ctx.deadline.remaining())
        part.lasts()

    with testing.linked([staged(lasts)]) as behind, joined(staged(passes_on)) as client:
        run_out(client, clock, seen)
        wait_for(lambda: ends)
    assert 0 < seen[0] < OVER


def test_streams_that_a_handler_reads_end_with_the_caller_s_time(clock: testing.Clock) -> None:
    began: list[Part] = []
    ends: list[BaseException] = []

    def reads(part: Part) -> Any:
        began.append(part)
        try:
            pair.client.open_stream().read()
        except TimeoutError as error:
            ends.append(error)
            raise

    with faulty_pair() as pair, joined(staged(reads)) as client:
        run_out(client, clock, began)
        wait_for(lambda: ends)


def test_what_a_handler_deferred_has_time(clock: testing.Clock) -> None:
    began: list[Part] = []
    left: list[Any] = []

    def defers(part: Part) -> None:
        part.ctx.defer(lambda: left.append(block_end()))
        began.append(part)
        part.lasts()

    with joined(staged(defers)) as client:
        run_out(client, clock, began)
        wait_for(lambda: left == [None])


def test_what_a_handler_defers_too_late_has_time_as_well(clock: testing.Clock) -> None:
    began: list[Part] = []
    left: list[Any] = []

    def defers(part: Part) -> None:
        began.append(part)
        part.lasts()
        part.ctx.defer(lambda: left.append(block_end()))

    with joined(staged(defers)) as client:
        run_out(client, clock, began)
        wait_for(lambda: left == [None])


# When the time is up: a client by hand cancels nothing


@contextmanager
def served(service: rpc.Service, **serving: Any) -> Iterator[tuple[RawRiver, rpc.RpcServer]]:
    """Yield a client by hand, and its server, which must be left as it was."""
    with (
        rpc.serve([service], codec="json", **serving) as server,
        RawRiver.dial(server.port, "json", websocket=True) as raw,
    ):
        raw.attach("session")
        yield raw, server
        wait_for(lambda: calls_of(server.handler) == 0)
        wait_for(lambda: workers_held(server.handler) == 0)
        assert expiries_of(server.handler) == 0


def opens(raw: RawRiver, procedure: str, timeout: float, flags: int = 0) -> None:
    names = {"serviceName": "test", "procedureName": procedure}
    raw.send({"controlFlags": OPEN | flags, "timeoutMs": timeout_field(timeout), **names})


def check_expired(raw: RawRiver) -> None:
    fields = raw.recv()
    assert (fields["controlFlags"], fields["payload"]) == (CANCEL, EXPIRED)


def check_nothing_more(raw: RawRiver) -> None:
    """Check that what is refused now is the next that comes."""
    raw.send({"streamId": "other", "controlFlags": OPEN | CLOSED})
    assert raw.recv()["streamId"] == "other"


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_cancelled_when_the_time_of_its_caller_is_up(
    kind: rpc.Kind, clock: testing.Clock
) -> None:
    began: list[Part] = []
    over: list[bool] = []

    def act(part: Part) -> None:
        part.ctx.defer(lambda: over.append(True))
        began.append(part)
        part.lasts()

    with served(staged(act)) as (raw, _):
        opens(raw, kind, SOON)
        wait_for(lambda: began)
        clock.advance(OVER)
        check_expired(raw)
        wait_for(lambda: over)
        check_nothing_more(raw)


def test_a_read_that_blocks_raises_once_and_then_ends(clock: testing.Clock) -> None:
    began: list[Part] = []
    ends: list[type[BaseException]] = []

    def reads(part: Part) -> None:
        began.append(part)
        assert part.requests is not None
        while EOFError not in ends:
            try:
                part.requests.read()
            except (TimeoutError, EOFError) as error:
                ends.append(type(error))
                wait_for(lambda: part.ctx.ended.is_set())

    with served(staged(reads)) as (raw, _):
        opens(raw, "stream", SOON)
        wait_for(lambda: began)
        clock.advance(OVER)
        check_expired(raw)
        wait_for(lambda: EOFError in ends)
    # The deadline of the block may have been noticed before the end of the call.
    assert ends in ([TimeoutError, EOFError], [TimeoutError, TimeoutError, EOFError])


def test_a_write_that_blocks_raises_and_then_tells_of_the_end(clock: testing.Clock) -> None:
    ends: list[Any] = []

    def writes(part: Part) -> None:
        assert part.responses is not None
        while not ends or type(ends[-1]) is TimeoutError:
            try:
                part.responses.write("x")
            except (TimeoutError, rpc.RiverError) as error:
                ends.append(error)
                wait_for(lambda: part.ctx.ended.is_set())

    options = rpc.Options(send_buffer_messages=2, heartbeat_interval=WAIT)
    with served(staged(writes), options=options) as (raw, _):
        opens(raw, "subscription", SOON, CLOSED)
        assert raw.recv()["payload"] == ok("x")  # an ACK, which counts too, fills the buffer
        clock.advance(OVER)
        check_expired(raw)
        wait_for(lambda: ends and isinstance(ends[-1], rpc.RiverError))
    assert (ends[-1].code, ends[-1].message) == ("CANCEL", OUT_OF_TIME)
    assert len(ends) <= 3


class Waiting:
    """Offer generators that wait, and note how they end."""

    def __init__(self) -> None:
        self.changed = rpc.Signal()
        self.ends: list[str] = []
        self.service = rpc.Service("test")
        self.service.subscription(name="waits")(self._waits)
        self.service.subscription(name="insists")(self._insists)
        self.service.subscription(name="pours")(self._pours)

    def _waits(self, ctx: rpc.Context, init: Any) -> Generator[Any]:
        try:
            yield from ctx.wait(self.changed)
        except TimeoutError as error:
            self.ends.append(str(error))
            raise
        finally:
            self.ends.append("finally")

    def _insists(self, ctx: rpc.Context, init: Any) -> Generator[Any]:
        try:
            while True:
                try:
                    yield from ctx.wait(self.changed, timeout=WAIT)
                except TimeoutError as error:
                    self.ends.append(str(error))
        finally:
            self.ends.append("finally")

    def _pours(self, ctx: rpc.Context, init: Any) -> Generator[Any]:
        try:
            while True:
                yield "x"
        except TimeoutError as error:
            self.ends.append(str(error))
            raise


layered = pytest.mark.parametrize(
    "layers", [[], [lambda ctx, init, step: step()]], ids=["bare", "layered"]
)


@layered
@pytest.mark.parametrize("procedure", ["waits", "insists"])
def test_a_generator_that_waits_without_a_thread_is_ended(
    procedure: str, layers: list[Any], clock: testing.Clock
) -> None:
    waiting = Waiting()
    with served(waiting.service, middleware=layers) as (raw, server):
        opens(raw, procedure, SOON, CLOSED)
        held = 1 if layers else 0
        handler = server.handler
        wait_for_value(lambda: (expiries_of(handler), workers_held(handler)), (1, held))
        clock.advance(OVER)
        check_expired(raw)
        wait_for(lambda: waiting.ends == [OUT_OF_TIME, "finally"])
        check_nothing_more(raw)


def test_a_generator_that_waits_for_room_is_ended(clock: testing.Clock) -> None:
    waiting = Waiting()
    options = rpc.Options(send_buffer_messages=2, heartbeat_interval=WAIT)
    with served(waiting.service, options=options) as (raw, _):
        opens(raw, "pours", SOON, CLOSED)
        assert raw.recv()["payload"] == ok("x")  # an ACK, which counts too, fills the buffer
        clock.advance(OVER)
        check_expired(raw)
        wait_for(lambda: waiting.ends == [OUT_OF_TIME])


def test_a_call_that_waits_for_a_worker_never_begins() -> None:
    held, begun_ = threading.Event(), list[Any]()
    service = rpc.Service("test")
    service.rpc(name="holds")(lambda ctx, init: held.wait(WAIT))
    service.rpc(name="begins")(lambda ctx, init: begun_.append(init))
    with served(service, workers=1, max_workers=1) as (raw, _):
        raw.open("first", "holds", flags=CLOSED)
        opens(raw, "begins", SOON, CLOSED)
        check_expired(raw)
        held.set()
        assert raw.recv()["payload"] == ok(True)
    assert begun_ == []


def test_a_call_without_any_time_left_never_begins() -> None:
    begun_: list[Any] = []
    service = rpc.Service("test")
    service.rpc(name="begins")(lambda ctx, init: begun_.append(init))
    with served(service) as (raw, _):
        opens(raw, "begins", 0, CLOSED)
        check_expired(raw)
        raw.send({"controlFlags": CANCEL, "payload": EXPIRED})  # its client is late, too
        check_nothing_more(raw)
    assert begun_ == []


def test_a_handler_s_own_timeout_at_that_time_is_no_failure(
    caplog: pytest.LogCaptureFixture, clock: testing.Clock
) -> None:
    began: list[Part] = []

    def waits(part: Part) -> None:
        began.append(part)
        assert part.requests is not None
        part.requests.read()

    with caplog.at_level(logging.WARNING), served(staged(waits)) as (raw, _):
        opens(raw, "upload", SOON)
        wait_for(lambda: began)
        clock.advance(OVER)
        check_expired(raw)
        check_nothing_more(raw)
    assert caplog.records == []


def test_a_timeout_before_that_time_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    def waits(part: Part) -> None:
        raise TimeoutError("of something else")

    with caplog.at_level(logging.CRITICAL), served(staged(waits)) as (raw, _):
        opens(raw, "rpc", WAIT, CLOSED)
        assert raw.recv()["payload"]["payload"]["code"] == "UNCAUGHT_ERROR"


# Races


def test_an_answer_before_that_time_stands() -> None:
    with served(staged(lambda part: "in time")) as (raw, server):
        opens(raw, "rpc", WAIT, CLOSED)
        assert raw.recv()["payload"] == ok("in time")
        assert expiries_of(server.handler) == 0


def test_a_call_that_its_client_leaves_open_is_ended_at_that_time(clock: testing.Clock) -> None:
    with served(staged(lambda part: "in time")) as (raw, _):
        opens(raw, "rpc", SOON)
        assert raw.recv()["payload"] == ok("in time")
        clock.advance(OVER)
        check_expired(raw)


def test_a_cancelled_call_does_not_expire(clock: testing.Clock) -> None:
    with served(staged(Part.lasts)) as (raw, server):
        opens(raw, "rpc", SOON, CLOSED)
        wait_for(lambda: expiries_of(server.handler) == 1)
        raw.send({"controlFlags": CANCEL, "payload": EXPIRED})
        wait_for(lambda: expiries_of(server.handler) == 0)
        clock.advance(OVER)
        check_nothing_more(raw)


def test_an_expired_call_can_be_cancelled_too() -> None:
    with served(staged(Part.lasts)) as (raw, _):
        opens(raw, "rpc", SOON, CLOSED)
        check_expired(raw)
        raw.send({"controlFlags": CANCEL, "payload": EXPIRED})
        check_nothing_more(raw)


def test_a_call_of_a_session_that_reconnects_keeps_its_time(clock: testing.Clock) -> None:
    with served(staged(Part.lasts)) as (raw, server):
        opens(raw, "rpc", SOON, CLOSED)
        wait_for(lambda: expiries_of(server.handler) == 1)
        raw.reset()
        with RawRiver.dial(server.port, "json", websocket=True) as again:
            again.seq, again.ack = raw.seq, raw.ack
            again.attach("session")
            clock.advance(OVER)
            check_expired(again)


def test_a_session_that_ends_takes_its_times_along() -> None:
    with joined(staged(Part.lasts)) as client:
        pending = client.submit("test", "rpc", None, WAIT)
        client.end_session()
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            pending.result()


# What a caller gets


@pytest.mark.parametrize("errors", ["raise", "results"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_gets_its_timeout_from_the_server_too(kind: rpc.Kind, errors: str) -> None:
    with (
        RawServer("json", websocket=True) as server,
        rpc.connect(server.url, codec="json", errors=errors, eager=True) as client,
        server.attached() as raw,
    ):
        call = begun(client, kind, WAIT)
        stream = raw.recv()["streamId"]
        raw.send({"streamId": stream, "controlFlags": CANCEL, "payload": EXPIRED})
        with pytest.raises(TimeoutError, match="test.* did not answer in time; it was cancelled"):
            ended(call)


def test_without_a_timeout_it_is_an_error_like_any_other() -> None:
    with (
        RawServer("json", websocket=True) as server,
        rpc.connect(server.url, codec="json", eager=True) as client,
        server.attached() as raw,
    ):
        call = client.submit("test", "rpc", None)
        fields = raw.recv()
        assert "timeoutMs" not in fields
        payload: Fields = {"streamId": fields["streamId"], "controlFlags": CANCEL}
        raw.send(payload | {"payload": EXPIRED})
        with pytest.raises(rpc.RiverError, match="DEADLINE_EXCEEDED"):
            call.result()


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_nobody_waits_for_ends_all_the_same(kind: rpc.Kind) -> None:
    with joined(staged(Part.lasts)) as client:
        call = begun(client, kind, SOON)
        wait_for(lambda: session_of(client).calls == 0)
        with pytest.raises(TimeoutError):
            ended(call)


def test_submitted_calls_are_taken_when_the_server_ends_them() -> None:
    with joined(staged(Part.lasts)) as client:
        done = client.completions()
        client.submit_many("test", "rpc", [1, 2], SOON, done)
        ends = done.take(WAIT)
        while len(ends) < 2:
            ends += done.take(WAIT)
        for each in ends:
            with pytest.raises(TimeoutError, match="test.rpc did not answer in time"):
                each.result()


# The wire


def test_a_call_made_without_a_connection_tells_what_is_left_once_it_leaves() -> None:
    dials = threading.Event()

    def metadata() -> None:
        dials.wait(WAIT)

    with (
        RawServer("json", websocket=True) as server,
        rpc.connect(server.url, codec="json", metadata=metadata) as client,
    ):
        call = client.submit("test", "rpc", None, 60.0)
        wait_for(lambda: (call.remaining() or 0.0) < 60.0 - SOON)
        dials.set()
        with server.attached() as raw:
            assert raw.recv()["timeoutMs"] <= timeout_field(60.0 - SOON)


@pytest.mark.parametrize("wrong", [-1, 0.5, "1", None, True, 2**53, [1]])
def test_a_wrong_time_ends_the_session_as_any_wrong_field(wrong: Any) -> None:
    with rpc.serve([staged(Part.lasts)], codec="json") as server:
        with RawRiver.dial(server.port, "json", websocket=True) as raw:
            raw.attach("session")
            names = {"serviceName": "test", "procedureName": "rpc"}
            raw.send({"controlFlags": OPEN | CLOSED, "timeoutMs": wrong, **names})
            assert raw.recv_end() == raw.clean
        wait_for(lambda: not session_records_of(server.handler))


def test_times_of_calls_that_come_and_go_take_no_room_and_wake_nobody() -> None:
    held = threading.Event()

    def act(part: Part) -> None:
        if part.init is None:
            held.wait(WAIT)

    with rpc.serve([staged(act)]) as server, rpc.connect(server.url) as client:
        longest = client.submit("test", "rpc", None, 60.0)
        wait_for(lambda: expiries_of(server.handler) == 1)
        due = alarm_of(server.handler)
        for number in range(300):
            client.rpc("test", "rpc", number, 120.0)
        assert expiries_of(server.handler) == 1
        assert alarm_of(server.handler) == due
        held.set()
        longest.result()
        assert expiries_of(server.handler) == 0
