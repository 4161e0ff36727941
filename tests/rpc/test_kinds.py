"""What each kind of procedure is for: values in order, errors among them, inits that matter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.inside import channel_of
from ..helpers.rpc.four_kinds import staged
from ..helpers.rpc.procedures import NUMBER, WAIT
from ..helpers.waiting import wait_for

TEXT = {"type": "string"}
LINE = {
    "type": "object",
    "properties": {"text": TEXT, "ignore": {"type": "boolean"}},
    "required": ["text"],
}
TREE = {
    "$defs": {"Tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    "$ref": "#/$defs/Tree",
}
DIVISION_BY_ZERO = rpc.ErrorSchema(
    "DIVISION_BY_ZERO",
    extras={"type": "object", "properties": {"dividend": NUMBER}, "required": ["dividend"]},
)


class Count:
    """A number that others watch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.value = 0
        self.watchers = 0

    def add(self, number: int) -> int:
        with self._changed:
            self.value += number
            self._changed.notify_all()
            return self.value

    def unwatch(self) -> None:
        with self._changed:
            self.watchers -= 1
            self._changed.notify_all()

    def other_than(self, seen: int | None, ended: threading.Event) -> int:
        """Return the number as soon as it is another one, or the call is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.value != seen or ended.is_set(), WAIT)
            return self.value


def offered() -> rpc.Service:
    service = rpc.Service("test", state=lambda context: Count())

    @service.rpc(init=NUMBER, response=NUMBER)
    def add(ctx: rpc.Context, init: int) -> int:
        total: int = ctx.state.add(init)
        return total

    @service.subscription(response=NUMBER)
    def value(ctx: rpc.Context, init: None, responses: rpc.Writable[int]) -> None:
        ctx.defer(ctx.state.unwatch)
        seen = None
        ctx.state.watchers += 1
        while not ctx.ended.is_set():
            seen = ctx.state.other_than(seen, ctx.ended)
            responses.write(seen)

    @service.rpc(init={"type": "array"}, response=NUMBER, errors=[DIVISION_BY_ZERO])
    def divide(ctx: rpc.Context, init: list[int]) -> float:
        dividend, divisor = init
        if not divisor:
            raise rpc.RiverError("DIVISION_BY_ZERO", "no", {"dividend": dividend})
        return dividend / divisor

    @service.stream(request=LINE, response=TEXT)
    def echo(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> Iterator[str]:
        for request in requests:
            if not request.get("ignore"):
                yield (init or "") + request["text"]

    @service.stream(request={}, response=TEXT, errors=[rpc.ErrorSchema("REFUSED")])
    def picky(ctx: rpc.Context, init: None, requests: rpc.Readable[Any]) -> Iterator[Any]:
        for request in requests:
            if request == "refuse":
                yield rpc.Err(rpc.RiverError("REFUSED", "as asked"))
            else:
                yield request.upper()

    @service.upload(request=NUMBER, response={})
    def total(ctx: rpc.Context, init: Any, requests: rpc.Readable[int]) -> Any:
        added = sum(requests)
        return added if init is None else f"{init}{added}"

    service.rpc(name="number", init=NUMBER, response=NUMBER)(lambda ctx, init: init)
    service.rpc(name="tree", init=TREE, response=TREE)(lambda ctx, init: init)
    return service


@pytest.fixture(params=["json", "msgpack"])
def client(request: pytest.FixtureRequest) -> Iterator[rpc.Client]:
    codec = request.param
    with (
        rpc.serve([offered()], codec=codec) as server,
        rpc.connect(server.url, codec=codec) as client,
    ):
        yield client


def test_an_rpc_may_fail_with_a_declared_error(client: rpc.Client) -> None:
    assert client.rpc("test", "divide", [6, 4], WAIT) == 1.5
    with pytest.raises(rpc.RiverError) as caught:
        client.rpc("test", "divide", [6, 0], WAIT)
    assert (caught.value.code, caught.value.extra) == ("DIVISION_BY_ZERO", {"dividend": 6})


def test_any_schema_will_do(client: rpc.Client) -> None:
    assert client.rpc("test", "number", 5, WAIT) == 5
    tree: list[Any] = [[], [[], [[]]]]
    assert client.rpc("test", "tree", tree, WAIT) == tree
    with pytest.raises(rpc.RiverError, match="INVALID_REQUEST"):
        client.rpc("test", "tree", [[], [1]], WAIT)


def test_rpcs_at_once_have_their_own_answers(client: rpc.Client) -> None:
    with ThreadPoolExecutor(10) as pool:
        calls = [pool.submit(client.rpc, "test", "number", number, WAIT) for number in range(10)]
        assert [call.result(WAIT) for call in calls] == list(range(10))


def test_streams_at_once_have_their_own_answers(client: rpc.Client) -> None:
    streams = [client.stream("test", "echo", f"{number}: ", WAIT) for number in range(10)]
    for word in ("one", "two"):
        for stream in streams:
            stream.write({"text": word})
    for stream in streams:
        stream.close_write()
    assert [list(stream) for stream in streams] == [
        [f"{number}: one", f"{number}: two"] for number in range(10)
    ]


def test_a_stream_need_not_answer_each_request(client: rpc.Client) -> None:
    with client.stream("test", "echo", None, WAIT) as stream:
        for text, ignore in (("abc", False), ("def", True), ("ghi", False)):
            stream.write({"text": text, "ignore": ignore})
        stream.close_write()
        assert list(stream) == ["abc", "ghi"]


def test_a_stream_may_end_before_it_has_begun(client: rpc.Client) -> None:
    with client.stream("test", "echo", None, WAIT) as stream:
        stream.close_write()
        assert list(stream) == []


def test_a_stream_may_be_ended_twice(client: rpc.Client) -> None:
    with client.stream("test", "echo", None, WAIT) as stream:
        stream.write({"text": "abc"})
        stream.close_write()
        stream.close_write()
        assert list(stream) == ["abc"]
        stream.close_write()
        with pytest.raises(ValueError, match="whose requests this side has closed"):
            stream.write({"text": "def"})


def test_a_stream_has_an_init(client: rpc.Client) -> None:
    with client.stream("test", "echo", "to ", WAIT) as stream:
        for text in ("you", "me"):
            stream.write({"text": text})
        stream.close_write()
        assert list(stream) == ["to you", "to me"]


def test_a_stream_goes_on_after_a_declared_error_and_ends_with_another(client: rpc.Client) -> None:
    with client.stream("test", "picky", None, WAIT) as stream:
        stream.write("one")
        assert stream.read() == "ONE"
        stream.write("refuse")
        with pytest.raises(rpc.RiverError, match="REFUSED: as asked"):
            stream.read()
        stream.write("two")
        assert stream.read() == "TWO"
        stream.write(3)
        with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR"):
            stream.read()
        with pytest.raises(EOFError):
            stream.read()


def test_a_subscription_tells_of_each_change(client: rpc.Client) -> None:
    with client.subscribe("test", "value", None, WAIT) as values:
        assert values.read() == 0
        for number, value in ((1, 1), (2, 3)):
            assert client.rpc("test", "add", number, WAIT) == value
            assert values.read() == value
    with pytest.raises(rpc.RiverError, match="CANCEL"):
        values.read()


def test_a_cancelled_subscription_watches_no_more() -> None:
    count = Count()
    service = rpc.Service("test", state=count)
    service.subscription(name="value")(offered().procedures["value"].handler)
    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        with client.subscribe("test", "value", None, WAIT) as values:
            assert values.read() == 0
            assert count.watchers == 1
        wait_for(lambda: count.watchers == 0)


def test_an_upload_is_answered_when_it_is_finished(client: rpc.Client) -> None:
    with client.upload("test", "total", None, WAIT) as upload:
        upload.write(1)
        upload.write(2)
        assert upload.finish() == 3


def test_an_upload_may_be_ended_before_it_is_finished(client: rpc.Client) -> None:
    with client.upload("test", "total", None, WAIT) as upload:
        upload.write(1)
        upload.close_write()
        with pytest.raises(ValueError, match="whose requests this side has closed"):
            upload.write(2)
        assert upload.finish() == 1


def test_an_upload_has_an_init(client: rpc.Client) -> None:
    with client.upload("test", "total", "sum: ", WAIT) as upload:
        upload.write(1)
        upload.write(2)
        assert upload.finish() == "sum: 3"


def test_an_upload_may_be_larger_than_what_waits_for_acknowledgements() -> None:
    options = rpc.Options(send_buffer_messages=4)
    with (
        rpc.serve([offered()], options=rpc.Options(ack_messages=2)) as server,
        rpc.connect(server.url, options=options) as client,
        client.upload("test", "total", None, WAIT) as upload,
    ):
        for number in range(100):
            upload.write(number)
        assert upload.finish() == 4950


def test_kinds_share_a_session(client: rpc.Client) -> None:
    """Calls of all kinds at once, each step of one between the steps of the others."""
    with (
        client.upload("test", "total", None, WAIT) as upload,
        client.stream("test", "echo", None, WAIT) as stream,
        client.subscribe("test", "value", None, WAIT) as values,
    ):
        assert values.read() == 0
        upload.write(1)
        stream.write({"text": "one"})
        assert client.rpc("test", "add", 7, WAIT) == 7
        assert stream.read() == "one"
        upload.write(2)
        assert values.read() == 7
        stream.write({"text": "two"})
        assert upload.finish() == 3
        stream.close_write()
        assert list(stream) == ["two"]


def test_a_subscription_that_nobody_reads_holds_nobody_up(client: rpc.Client) -> None:
    service = rpc.Service("flood")

    @service.subscription()
    def numbers(ctx: rpc.Context, init: int) -> Iterator[int]:
        yield from range(init)

    service.rpc(name="same")(lambda ctx, init: init)
    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        flood = client.subscribe("flood", "numbers", 3000, WAIT)
        assert client.rpc("flood", "same", "answered", WAIT) == "answered"
        assert list(flood) == list(range(3000))


def test_an_answer_may_be_as_large_as_a_message(client: rpc.Client) -> None:
    large = "x" * (2 * 1024 * 1024)
    with (
        rpc.serve([staged(lambda part: large)]) as server,
        rpc.connect(server.url) as client,
    ):
        assert client.rpc("test", "rpc", None, WAIT) == large


# Connecting


def test_an_eager_client_connects_before_it_is_used() -> None:
    statuses: list[str] = []
    with (
        rpc.serve([offered()]) as server,
        rpc.connect(server.url, eager=True, on_connection_status=statuses.append) as client,
    ):
        wait_for(lambda: server.handler.sessions == 1)
        wait_for(lambda: statuses[-1:] == ["connected"])
        assert client.rpc("test", "number", 1, WAIT) == 1


def threads_of(client: rpc.Client) -> list[str]:
    """Return the names of a client's threads."""
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith(f"wsmux-rpc-{client.client_id}")]


def test_other_clients_connect_with_their_first_call() -> None:
    statuses: list[str] = []
    with (
        rpc.serve([offered()]) as server,
        rpc.connect(server.url, on_connection_status=statuses.append) as client,
    ):
        assert (statuses, threads_of(client)) == ([], [])
        assert client.rpc("test", "number", 1, WAIT) == 1
        assert threads_of(client)
        assert server.handler.sessions == 1


def test_a_client_may_be_told_to_connect_no_sooner_than_asked() -> None:
    options = rpc.Options(session_disconnect_grace=0.05)
    with rpc.serve([offered()]) as server:
        with rpc.connect(server.url, connect_on_call=False, options=options) as client:
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                client.rpc("test", "number", 1, WAIT)
            assert channel_of(client) is None
        with rpc.connect(server.url, connect_on_call=False) as client:
            call = client.submit("test", "number", 1, WAIT)
            assert server.handler.sessions == 0
            client.wait_connected(WAIT)
            assert call.result() == 1
