"""Many threads, calls that block, and ends in the middle of everything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from wsmux import rpc
from wsmux.testing import LockOrder

from ..helpers.inside import call_of, readers_waiting, requests_waiting, writers_waiting
from ..helpers.rpc.clients import cut, session_of
from ..helpers.rpc.cutting_relay import Cut, Relay
from ..helpers.rpc.noted_calls import Witness
from ..helpers.rpc.procedures import WAIT, carrier_name
from ..helpers.rpc.talk import BOTH, PATIENT, TWO_CARRIERS, talk
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for

# Sixteen threads


def one_round(client: rpc.Client, label: str, count: int) -> None:
    """Make a call of each kind; all of their responses must be right."""
    numbers = list(range(count))
    assert client.rpc("test", "same", label, WAIT) == label
    with client.upload("test", "gather", f"{label} gathers", WAIT) as upload:
        for number in numbers:
            upload.write(number)
        assert upload.finish() == numbers
    assert list(client.subscribe("test", "count", count, WAIT)) == numbers
    with client.stream("test", "echo", f"{label} echoes", WAIT) as stream:
        for number in numbers:
            stream.write(number)
            assert stream.read() == number
        stream.close_write()
        assert list(stream) == []
    with client.stream("test", "echo", f"{label} leaves", WAIT) as left:
        left.write(label)
        assert left.read() == label


def storm(carrier: tuple[str, bool], rounds: int, count: int, cuts: int) -> None:
    """Let threads share a client whose connections are cut, by frames of both directions."""
    planned = [
        Cut(BOTH[number % 2], 20 + number % 30, "reset", BOTH, number % 3 / 2)
        for number in range(cuts)
    ]
    with talk(carrier, *planned, options=PATIENT) as talking, ThreadPoolExecutor(16) as pool:

        def work(thread: int) -> None:
            for number in range(rounds):
                one_round(talking.client, f"{thread}-{number}", count)

        for done in [pool.submit(work, thread) for thread in range(16)]:
            done.result(30 * WAIT)
        assert talking.relay.made == planned
        assert talking.statuses == ["created", "created"]
        assert session_of(talking.client).calls == 0
        for label, note in talking.witness.notes.items():
            assert note.cleaned.wait(WAIT)
            assert note.left.wait(WAIT)
            assert note.errors == (["CANCEL"] if label.endswith("leaves") else [])


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=carrier_name)
def test_sixteen_threads_share_a_client(carrier: tuple[str, bool]) -> None:
    with LockOrder():
        storm(carrier, rounds=2, count=5, cuts=8)


@pytest.mark.long
@pytest.mark.hang_bound(900)
@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("carrier", TWO_CARRIERS, ids=carrier_name)
def test_sixteen_threads_share_a_client_for_long(carrier: tuple[str, bool]) -> None:
    storm(carrier, rounds=20, count=50, cuts=200)


# Blocking


def test_handlers_that_block_hold_up_what_their_session_calls_and_nothing_else() -> None:
    witness = Witness()
    with (
        rpc.serve([witness.service], workers=2) as server,
        rpc.connect(server.url) as client,
        rpc.connect(server.url) as other,
        ThreadPoolExecutor(3) as pool,
    ):
        blocked = [pool.submit(client.rpc, "test", "blocks", label, WAIT) for label in "ab"]
        for label in "ab":
            assert witness.notes[label].entered.wait(WAIT)
        waits = pool.submit(client.rpc, "test", "same", "waits", WAIT)
        with pytest.raises(TimeoutError):
            client.rpc("test", "same", "impatient", timeout=0.05)
        with pytest.raises(rpc.RiverError, match="couldn't find a procedure"):
            client.rpc("test", "none", None, WAIT)  # the I/O thread answers that
        assert other.rpc("test", "same", "another session", WAIT) == "another session"
        assert not waits.done()
        witness.block.set()
        assert waits.result(WAIT) == "waits"
        assert [call.result(WAIT) for call in blocked] == [True, True]


def test_a_slow_reader_of_a_client_is_cancelled_while_others_read_on() -> None:
    witness = Witness()
    options = rpc.Options(unread_messages=50)
    with (
        rpc.serve([witness.service]) as server,
        rpc.connect(server.url, options=options) as client,
    ):
        slow = client.subscribe("test", "pours", "slow")
        witness.notes["slow"].check_lost("CANCEL")
        assert client.rpc("test", "same", "still here", WAIT) == "still here"
        assert list(client.subscribe("test", "count", 40, WAIT)) == list(range(40))
        read = [slow.read(WAIT) for _ in range(51)]
        assert read == list(range(51))
        with pytest.raises(rpc.RiverError, match="CANCEL: reader fell behind"):
            slow.read(WAIT)


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_an_upload_of_many_small_messages_outruns_its_handler(count: int) -> None:
    """The handler reads none of them before the last one was written."""
    service, written = rpc.Service("test"), threading.Event()

    @service.upload()
    def late(ctx: rpc.Context, init: Any, requests: rpc.Readable[int]) -> int:
        assert written.wait(4 * WAIT)
        return sum(requests)

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        upload = client.upload("test", "late", None)
        for number in range(count):
            upload.write(number)
        written.set()
        assert upload.finish(4 * WAIT) == sum(range(count))


def test_many_small_messages_that_nobody_reads_are_bounded_by_their_bytes() -> None:
    witness = Witness()
    options = rpc.Options(unread_bytes=100_000)
    with (
        rpc.serve([witness.service], options=options) as server,
        rpc.connect(server.url) as client,
    ):
        upload = client.upload("test", "holds", "slow", WAIT)

        def write_on() -> None:
            while True:
                upload.write(1)

        with pytest.raises(rpc.RiverError, match=r"CANCEL: .*: Options\.unread_bytes is 100000"):
            write_on()
        witness.notes["slow"].check_lost("ended")


def test_a_slow_reader_of_a_server_is_cancelled_while_others_read_on() -> None:
    witness = Witness()
    options = rpc.Options(unread_messages=50)
    with (
        rpc.serve([witness.service], options=options) as server,
        rpc.connect(server.url) as client,
    ):
        upload = client.upload("test", "holds", "slow", WAIT)

        def write_on() -> None:
            while True:
                upload.write("x")

        with pytest.raises(rpc.RiverError, match="CANCEL: reader fell behind"):
            write_on()
        witness.notes["slow"].check_lost("ended")
        assert client.rpc("test", "same", "still here", WAIT) == "still here"


def run_out_of_time(client: rpc.Client, kind: str, label: str, timeout: float) -> None:
    # The handler of a stream, whose time is up as well, ends its half; that may come first.
    ends = (TimeoutError, EOFError) if kind == "stream" else TimeoutError
    with pytest.raises(ends):  # noqa: PT012 - what comes first must not raise it
        match kind:
            case "rpc":
                client.rpc("test", "waits", label, timeout)
            case "upload":
                client.upload("test", "holds", label).finish(timeout)
            case "subscription":
                with client.subscribe("test", "pends", label, timeout) as subscription:
                    subscription.read()
            case _:
                with client.stream("test", "echo", label, timeout) as stream:
                    stream.read()


@pytest.mark.parametrize("kind", ["rpc", "upload", "subscription", "stream"])
def test_a_call_out_of_time_is_cancelled_at_its_handler(kind: str) -> None:
    witness = Witness()
    with rpc.serve([witness.service]) as server, rpc.connect(server.url) as client:
        timeout, label = 0.05, "first"
        run_out_of_time(client, kind, label, timeout)
        while not witness.notes[label].entered.is_set():  # the machine is slow
            timeout, label = 2 * timeout, f"{label} again"
            run_out_of_time(client, kind, label, timeout)
        # The server ends it by itself, too; it does not matter which of the two comes first.
        ends = ["ended"] if kind in ("rpc", "upload") else ["CANCEL", "timeout"]
        witness.notes[label].check_lost(*ends)
        assert session_of(client).calls == 0
        assert client.rpc("test", "same", 1, WAIT) == 1


def test_callbacks_that_never_return_stop_nothing() -> None:
    for_ever = threading.Event()
    entered: list[str] = []

    def blocks(*what: object) -> None:
        entered.append(str(what[0]))
        for_ever.wait()

    witness = Witness()
    callbacks = {"on_session_status": blocks, "on_protocol_error": blocks}
    try:
        with (
            rpc.serve([witness.service], **callbacks) as server,
            rpc.connect(server.url, on_connection_status=blocks, **callbacks) as client,
        ):
            assert client.rpc("test", "same", 1, WAIT) == 1
            wait_for(lambda: len(entered) == 2)
            assert cut(client)
            assert client.rpc("test", "same", 2, WAIT) == 2
            assert list(client.subscribe("test", "count", 3, WAIT)) == [0, 1, 2]
        assert len(entered) == 2
    finally:
        for_ever.set()


# Ends in every state


class State:
    """Hold a client and a server in the middle of something."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.witness = Witness()
        self.pool = stack.enter_context(ThreadPoolExecutor(4))
        self.calls: list[Future[Any]] = []

    def serve(self, **serving: Any) -> None:
        self.server = self.stack.enter_context(rpc.serve([self.witness.service], **serving))
        self.url = self.server.url

    def connect(self, url: str | None = None, **options: Any) -> None:
        made = rpc.connect(url or self.url, **options)
        self.client = self.stack.enter_context(made)

    def call(self, procedure: str, init: Any = "label") -> None:
        self.calls.append(self.pool.submit(self.client.rpc, "test", procedure, init, WAIT))

    def entered(self, label: str = "label") -> None:
        assert self.witness.notes[label].entered.wait(WAIT)


def before_the_first_call(state: State) -> None:
    state.serve()
    state.connect()


def backing_off(state: State) -> None:
    state.serve()
    options = rpc.Options(backoff_base=3 * WAIT, session_disconnect_grace=3 * WAIT)
    told: list[str] = []
    state.connect("ws://127.0.0.1:9", options=options, on_connection_status=told.append)
    state.call("same")
    wait_for(lambda: told.count("backing_off") == 2)  # before the first attempt, and behind it


def upgrading(state: State) -> None:
    """The server accepts the connection and does not answer."""
    state.serve()
    silent = state.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    options = rpc.Options(connection_timeout=1.0)
    state.connect(f"ws://127.0.0.1:{silent.getsockname()[1]}", options=options)
    state.call("same")
    state.stack.enter_context(silent.accept()[0])


def greeting(state: State) -> None:
    """The server has the handshake and does not answer."""
    asked, answers = threading.Event(), threading.Event()

    def validate(*_: object) -> None:
        asked.set()
        assert answers.wait(WAIT)

    state.serve(validate=validate)
    state.stack.callback(answers.set)
    state.connect(options=rpc.Options(handshake_timeout=3 * WAIT))
    state.call("same")
    assert asked.wait(WAIT)


def making_metadata(state: State) -> None:
    made, asked = threading.Event(), threading.Event()

    def metadata() -> bool:
        asked.set()
        return made.wait(WAIT)

    state.serve()
    state.connect(metadata=metadata)
    state.stack.callback(made.set)
    state.call("same")
    assert asked.wait(WAIT)


def waiting_for_a_worker(state: State) -> None:
    state.serve(workers=1)
    state.connect()
    state.call("waits")
    state.entered()
    state.call("same")
    state.client.wait_connected(WAIT)


def running(state: State) -> None:
    state.serve()
    state.connect()
    state.call("waits")
    state.entered()


def with_readers_that_wait(state: State) -> None:
    state.serve()
    state.connect()
    stream = state.client.stream("test", "echo", "label")
    state.calls.append(state.pool.submit(stream.read))
    state.entered()
    wait_for(lambda: readers_waiting(stream))


def with_a_client_that_waits_for_room(state: State) -> None:
    """Over a relay that has stopped carrying."""
    state.serve()
    relay = state.stack.enter_context(
        Relay(
            lambda: socket.create_connection((state.server.host, state.server.port), WAIT),
            websocket=True,
        )
    )
    state.connect(relay.url, options=rpc.Options(send_buffer_messages=2, heartbeat_interval=WAIT))
    stream = state.client.stream("test", "echo", "label")
    state.entered()
    relay.swallow_all()
    state.stack.callback(relay.kill_all)

    def write() -> None:
        while True:
            stream.write(1)

    state.calls.append(state.pool.submit(write))
    wait_for(lambda: requests_waiting(state.client))


def with_a_handler_that_waits_for_room(state: State) -> None:
    state.serve(options=rpc.Options(send_buffer_messages=2, heartbeat_interval=WAIT))
    relay = state.stack.enter_context(
        Relay(
            lambda: socket.create_connection((state.server.host, state.server.port), WAIT),
            websocket=True,
        )
    )
    state.connect(relay.url, options=rpc.Options(heartbeat_interval=WAIT))
    state.client.wait_connected(WAIT)
    subscription = state.client.subscribe("test", "pours", "label")
    state.entered()
    relay.swallow_all()
    state.stack.callback(relay.kill_all)
    state.calls.append(state.pool.submit(list, subscription))
    wait_for(lambda: writers_waiting(state.server.handler))


def with_unread_responses(state: State) -> None:
    state.serve()
    state.connect()
    subscription = state.client.subscribe("test", "count", 10)
    wait_for(lambda: call_of(subscription).reader.unread_messages == 10)


STATES: list[Callable[[State], None]] = [
    before_the_first_call,
    backing_off,
    upgrading,
    greeting,
    making_metadata,
    waiting_for_a_worker,
    running,
    with_readers_that_wait,
    with_a_client_that_waits_for_room,
    with_a_handler_that_waits_for_room,
    with_unread_responses,
]


def close_client(state: State) -> None:
    state.client.close(0)


def shut_down_server(state: State) -> None:
    state.server.shutdown(0)
    state.client.close(0)


@each_case
@pytest.mark.parametrize("end", [close_client, shut_down_server], ids=lambda end: end.__name__)
@pytest.mark.parametrize("enter", STATES, ids=lambda enter: enter.__name__)
def test_an_end_in_any_state_leaves_no_thread(
    enter: Callable[[State], None], end: Callable[[State], None]
) -> None:
    """That none is left is seen by the guard of all tests; here, that callers are told."""
    with ExitStack() as stack:
        state = State(stack)
        enter(state)
        end(state)
        for call in state.calls:
            error = call.exception(WAIT)
            assert isinstance(error, rpc.RiverError)
            assert error.code == "UNEXPECTED_DISCONNECT"
