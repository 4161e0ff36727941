"""Connections of a relay that end, stop reading, are taken over, or bring what is no envelope."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from wsmux.bus.relay import sessions
from wsmux.bus.relay.memory_queues import MemoryQueues
from wsmux.bus.relay.queues import (
    DurableQueues,
    Mailbox,
    Put,
    QueuedEnvelope,
    QueueUnavailable,
)
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.relay.router import OFFLINE
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import Kind, kind_of, parse
from wsmux.exceptions import CloseCode
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.inside import is_stuck
from ...helpers.bus.relays import Node, ask, get, metric, raw, relay, served
from ...helpers.raw_peer import (
    BINARY,
    CLOSE_FRAME,
    PING,
    TEXT,
    WAIT,
    RawPeer,
    close_payload,
    in_thread,
    wait_for,
)
from ...helpers.redis_server import redis_server

EVICTIONS = 'relay_session_evictions_total{{reason="{}"}}'

# Bytes of the messages that fill buffers.
LARGE = 50_000


def alone(server: RelayServer, *sessions: Address) -> None:
    """Wait until these are the connected sessions."""
    table = server.relay.sessions
    wait_for(lambda: {session.address for session in table.all()} == set(sessions), f"{sessions}")


def counted(server: RelayServer, name: str, number: float) -> None:
    """Wait until a metric has a value; ends are counted behind all else."""
    wait_for(lambda: metric(server, name) == number, f"{name} {number}")


# Takeover


def test_a_later_connection_takes_over() -> None:
    with served() as server, Node(server, 1) as sender, Node(server, 2, "s") as first:
        first.nothing()
        with Node(server, 2, "s") as second:
            code, reason = first.ended()
            assert (code, "took over the session 2:s" in reason) == (CloseCode.TAKEN_OVER, True)
            sender.ask(second.address, uid="second")
            assert second.take().uid == "second"
        counted(server, EVICTIONS.format("cancelled"), 1)


def test_a_takeover_leaves_the_later_connection_alone() -> None:
    """The known relay's clean-up of the first removes the second, and both flap for ever."""
    with served() as server, Node(server, 1) as sender:
        nodes = [Node(server, 2) for _ in range(10)]
        for node in nodes[:-1]:
            with node:
                assert node.ended()[0] == CloseCode.TAKEN_OVER
        with nodes[-1] as last:
            alone(server, Address(1), Address(2))
            counted(server, 'relay_worker_connections{worker="0"}', 2)
            sender.ask(last.address, uid="last", tags="fail-fast")
            assert last.take().uid == "last"


def test_other_sessions_of_a_twin_are_not_taken_over() -> None:
    with served() as server:
        nodes = [Node(server, 2, name) for name in (None, "", "a")]
        for node in nodes:
            node.nothing()
        for node in nodes:
            with node:
                assert node.link.error is None


def test_what_a_replaced_connection_did_not_take_goes_to_the_later_one() -> None:
    with served(buffers=4096) as server, Node(server, 1) as sender:
        with raw(server, 2, buffer=4096):
            sent = [sender.ask(Address(2), plain=bytes(LARGE)).uid for _ in range(20)]
            sender.nothing()
            with Node(server, 2) as second:
                got = {second.take().uid for _ in range(18)}
        assert got <= set(sent)


# Order


redis = pytest.fixture(scope="module")(redis_server)


@pytest.fixture(params=["memory", "fast"])
def ordered(request: pytest.FixtureRequest) -> Iterator[RelayServer]:
    """A relay that sends before it queues, with sockets that hold little."""
    if request.param == "memory":
        made = relay()
    else:
        client = request.getfixturevalue("redis").client()
        client.flushall()
        made = relay(queues=RedisQueues(client), fast=True)
    with served(made, buffers=4096) as server:
        yield server


def send_numbers(sender: Node, numbers: range) -> None:
    for number in numbers:
        sender.ask(Address(2), uid=str(number), plain=bytes(10_000))
    sender.nothing()


def numbers_until(node: Node, last: int) -> list[int]:
    got = [int(node.take().uid)]
    while got[-1] != last:
        got.append(int(node.take().uid))
    return got


@pytest.mark.parametrize("few", [10, 200])
@pytest.mark.parametrize("read", [0, 20])
def test_what_a_lost_connection_did_not_take_comes_first_and_in_order(
    ordered: RelayServer, few: int, read: int
) -> None:
    """What the link had taken over comes before what was queued since then."""
    with Node(ordered, 1) as sender:
        with raw(ordered, 2, buffer=4096) as peer:
            send_numbers(sender, range(few))
            for _ in range(min(read, few // 2)):
                peer.recv_message()
            peer.reset()
        alone(ordered, Address(1))
        send_numbers(sender, range(few, few + 3))
        with Node(ordered, 2) as again:
            got = numbers_until(again, few + 2)
            assert got == list(range(got[0], few + 3))


@pytest.mark.parametrize("few", [10, 200])
def test_what_a_replaced_connection_did_not_take_comes_before_what_is_new(
    ordered: RelayServer, few: int
) -> None:
    with Node(ordered, 1) as sender, raw(ordered, 2, buffer=4096):
        send_numbers(sender, range(few))
        sending = in_thread(lambda: send_numbers(sender, range(few, 2 * few)))
        with Node(ordered, 2) as second:
            got = numbers_until(second, 2 * few - 1)
            sending.result(WAIT)
            assert got == list(range(got[0], 2 * few))


class OnceAwayQueues(MemoryQueues):
    """Take anything but the third envelope."""

    puts = 0

    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        self.puts += 1
        if self.puts == 3:
            raise QueueUnavailable("not now")
        super().put(address, data, expires_at, deadline, source)


def test_what_could_not_be_queued_once_keeps_its_place() -> None:
    """The third is one of those that the link had taken over: the one behind them is refused."""
    with (
        served(relay(queues=OnceAwayQueues()), buffers=4096) as server,
        Node(server, 1) as sender,
    ):
        with raw(server, 2, buffer=4096) as peer:
            for number in range(60):
                sender.ask(Address(2), uid=str(number), plain=bytes(10_000))
            (refused,) = sender.answers()
            assert refused.error.message == "not now"
            peer.reset()
        alone(server, Address(1))
        with Node(server, 2) as again:
            got = numbers_until(again, 59)
            missing = int(refused.uid)
            assert got[0] < missing
            assert got == [n for n in range(got[0], 60) if n != missing]


class StillQueues(MemoryQueues):
    """Take nothing before they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        self.asked.set()
        assert self.go_on.wait(WAIT)
        super().put(address, data, expires_at, deadline, source)


def test_a_sender_does_not_wait_until_the_queue_has_failed_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "PUT_TIME", 0.2)
    queues = StillQueues()
    with (
        served(relay(queues=queues), buffers=4096) as server,
        Node(server, 1) as one,
        Node(server, 3) as other,
        raw(server, 2, buffer=4096),
    ):
        alone(server, *map(Address, (1, 2, 3)))
        sending = in_thread(lambda: send_numbers(one, range(60)))
        assert queues.asked.wait(WAIT)
        refused = other.ask(Address(2))
        assert other.refused() == (
            refused.uid,
            "what 2 has not read could not be queued in 0.2 s",
        )
        queues.go_on.set()
        sending.exception(WAIT)


# Ghosts


def vanish(peer: RawPeer) -> None:
    peer.reset()


def end_the_file(peer: RawPeer) -> None:
    peer.sock.shutdown(socket.SHUT_WR)


def say_goodbye(peer: RawPeer) -> None:
    peer.send_frame(CLOSE_FRAME, close_payload(1000))


def break_a_rule(peer: RawPeer) -> None:
    peer.send_frame(PING, b"x", reserved=1)


def send_text(peer: RawPeer) -> None:
    peer.send_frame(TEXT, b"{}")


def send_garbage(peer: RawPeer) -> None:
    peer.send_frame(BINARY, b"\xff\xff\xff")


def cut_a_frame(peer: RawPeer) -> None:
    peer.send(peer.frame(BINARY, b"x" * 100)[:50])
    peer.sock.shutdown(socket.SHUT_RDWR)


ENDS = [vanish, end_the_file, say_goodbye, break_a_rule, send_text, send_garbage, cut_a_frame]


@pytest.mark.parametrize("leave", ENDS, ids=lambda leave: leave.__name__)
def test_however_a_twin_leaves_it_is_gone(leave: object) -> None:
    with served() as server, Node(server, 1) as sender, raw(server, 2) as peer:
        alone(server, Address(1), Address(2))
        leave(peer)  # type: ignore[operator]
        alone(server, Address(1))
        envelope = sender.ask(Address(2), tags="fail-fast")
        assert sender.refused() == (envelope.uid, OFFLINE)
        counted(server, EVICTIONS.format("closed"), 1)
        counted(server, 'relay_worker_connections{worker="0"}', 1)


def test_a_connection_whose_thread_fails_is_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with served() as server, Node(server, 1) as one:
        one.nothing()

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(server.relay, "_decide", fail)
        one.ask(one.address)
        one.ended()
        alone(server)
    assert "the thread of 1 failed" in caplog.text


# What is no envelope

GARBAGE = {
    "tag 0": b"\x00",
    "wire type 7": b"\x0f",
    "cut varint": b"\x18\xff",
    "endless varint": b"\x18" + b"\xff" * 11,
    "cut length": b"\x0a\xff",
    "length beyond the end": b"\x0a\x05abc",
    "uid that is not UTF-8": b"\x0a\x01\xff",
    "schema that is not UTF-8": b"\x52\x01\xff",
    "cut address": b"\x2a\x04\x08\x01\x12\x05",
    "session that is not UTF-8": b"\x2a\x05\x08\x01\x12\x01\xff",
    "cut fixed32": b"\x0d\x01",
    "end of a group": b"\x0c",
    "JSON": b'{"ver": 1}',
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_envelope_ends_the_connection_with_a_sentence(data: bytes) -> None:
    with served() as server, Node(server, 2) as other, raw(server, 1) as peer:
        peer.send_frame(BINARY, data)
        code, reason = peer.recv_close()
        assert (code, "are not an envelope" in reason) == (CloseCode.INVALID_DATA, True)
        other.nothing()


def test_a_text_message_ends_the_connection_with_a_sentence() -> None:
    with served() as server, raw(server, 1) as peer:
        peer.send_frame(TEXT, b"{}")
        assert peer.recv_close() == (
            CloseCode.UNSUPPORTED_DATA,
            "received a text message; envelopes are binary messages",
        )


def test_an_empty_message_is_an_envelope_without_a_source() -> None:
    with served() as server, Node(server, 1) as one:
        one.send(b"")
        one.nothing()


# Slow readers


@pytest.fixture
def slow() -> Iterator[RelayServer]:
    with served(relay(stuck_limit=0.3), buffers=4096) as server:
        yield server


def test_a_twin_that_does_not_read_is_evicted_and_loses_nothing(slow: RelayServer) -> None:
    with Node(slow, 1) as sender, raw(slow, 2, buffer=4096) as peer:
        sent = [sender.ask(Address(2), plain=bytes(LARGE)).uid for _ in range(30)]
        alone(slow, Address(1))
        counted(slow, EVICTIONS.format("back_pressure_timeout"), 1)
        got = frames(peer)
        with Node(slow, 2) as again:
            while len(set(got)) < len(sent):
                got.append(again.take().uid)
        assert set(got) == set(sent)


def frames(peer: RawPeer) -> list[str]:
    """Return the uids of the whole envelopes that come until the end."""
    uids = []
    try:
        while (frame := peer.recv_frame()).opcode == BINARY:
            uids.append(parse(frame.payload).uid)
    except (EOFError, ConnectionError):
        return uids
    assert int.from_bytes(frame.payload[:2], "big") == CloseCode.TRY_AGAIN_LATER
    return uids


def test_a_slow_twin_holds_up_nobody(slow: RelayServer) -> None:
    with (
        Node(slow, 1) as sender,
        raw(slow, 2, buffer=4096),
        Node(slow, 3) as other,
    ):
        for n in range(30):
            sender.ask(Address(2), plain=bytes(LARGE))
            sender.ask(other.address, uid=str(n))
        assert [other.take().uid for _ in range(30)] == [str(n) for n in range(30)]


def test_a_twin_that_reads_slowly_gets_everything_in_order() -> None:
    with (
        served(buffers=4096) as server,
        Node(server, 1) as sender,
        raw(server, 2, buffer=4096) as peer,
    ):
        sending = in_thread(
            lambda: [sender.ask(Address(2), plain=bytes(LARGE)).uid for _ in range(60)]
        )
        got = [parse(peer.recv_message()).uid for _ in range(30)]
        sent = sending.result(WAIT)
        got += [parse(peer.recv_message()).uid for _ in range(30)]
        assert got == sent
        sender.ask(Address(2), uid="direct again")
        assert parse(peer.recv_message()).uid == "direct again"


def test_two_twins_that_write_and_do_not_read_do_not_hang_the_relay() -> None:
    with served(buffers=4096) as server, raw(server, 1) as one, raw(server, 2) as two:
        data = one.frame(
            BINARY, ask(Address(1), Address(2), plain=bytes(LARGE)).SerializeToString()
        )
        back = two.frame(
            BINARY, ask(Address(2), Address(1), plain=bytes(LARGE)).SerializeToString()
        )
        for _ in range(100):
            one.send(data)
            two.send(back)
        with Node(server, 3) as third:
            third.nothing()
        assert get(server, "/healthz")[0] == 200


class NoQueues(MemoryQueues):
    """Take nothing."""

    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        raise QueueUnavailable("no queue today")


def test_a_full_connection_without_a_queue_is_told_and_recovers() -> None:
    with (
        served(relay(queues=NoQueues()), buffers=4096) as server,
        Node(server, 1) as sender,
        raw(server, 2, buffer=4096) as peer,
    ):
        alone(server, Address(1), Address(2))
        session = server.relay.sessions.get(Address(2))
        assert session is not None
        sent = [sender.ask(Address(2), plain=bytes(LARGE)).uid for _ in range(40)]
        told = sender.answers()
        assert is_stuck(session)
        assert {answer.error.message for answer in told} == {"no queue today"}
        refused = {answer.uid for answer in told}
        got = [parse(peer.recv_message()).uid for _ in range(len(sent) - len(refused))]
        assert got == [uid for uid in sent if uid not in refused]
        wait_for(lambda: not is_stuck(session), "room")
        sender.ask(Address(2), uid="direct")
        assert parse(peer.recv_message()).uid == "direct"


class BusyMailbox(Mailbox):
    """Wait for ever for what is queued."""

    def take(self, limit: int) -> list[QueuedEnvelope]:
        return []

    def waiting(self) -> bool:
        return True

    def ack(self, ids: Iterable[str]) -> None:
        assert not [*ids]

    def close(self) -> None:
        pass


class LostQueues(NoQueues):
    """Take nothing, and give back nothing of what they hold for each session."""

    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        return BusyMailbox()


class LostDurableQueues(LostQueues, DurableQueues):
    """The same, where each envelope is queued before it is sent."""

    def begin(self, address: Address, data: bytes, expires_at: int, source: int = 0) -> Put:
        return Put(address, data, expires_at, source)

    def finish(self, puts: Sequence[Put], deadline: Deadline) -> None:
        for put in puts:
            put.done, put.error = True, QueueUnavailable("no queue today")


@pytest.mark.parametrize("queues", [LostQueues, LostDurableQueues])
def test_queues_that_are_lost_are_told_and_pings_answered_behind(
    queues: type[LostQueues],
) -> None:
    """In one batch: a pong says that what came before its ping is queued, or was refused."""
    ping = ask(Address(1), None)
    ping.ping.SetInParent()
    asked = [ask(Address(1), Address(n)) for n in (1, 2)]
    with served(relay(queues=queues())) as server, raw(server, 1) as peer:
        frames = [peer.frame(BINARY, each.SerializeToString()) for each in (*asked, ping)]
        peer.send(b"".join(frames))
        told = [parse(peer.recv_message()) for _ in asked]
        assert [each.uid for each in told] == [each.uid for each in asked]
        assert {each.error.message for each in told} == {"no queue today"}
        assert kind_of(parse(peer.recv_message())) is Kind.PONG


def test_an_answer_that_neither_socket_nor_queue_took_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        served(relay(queues=LostDurableQueues()), buffers=4096) as server,
        raw(server, 1, buffer=4096) as peer,
    ):
        ping = ask(Address(1), None, plain=bytes(LARGE))
        ping.ping.SetInParent()
        peer.send(peer.frame(BINARY, ping.SerializeToString()) * 40)
        wait_for(lambda: "1 was not answered: no queue today" in caplog.text)


def test_what_neither_socket_nor_queue_took_is_logged_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        served(relay(queues=NoQueues()), buffers=4096) as server,
        Node(server, 1) as sender,
        raw(server, 2, buffer=4096) as peer,
    ):
        alone(server, Address(1), Address(2))
        for _ in range(40):
            sender.ask(Address(2), plain=bytes(LARGE))
        sender.answers()
        peer.reset()
        alone(server, Address(1))
    assert "envelopes for 2 are lost: no queue today" in caplog.text


# The end of the relay


def test_shutdown_tells_every_twin() -> None:
    with served() as server:
        nodes = [Node(server, n) for n in range(1, 6)]
        for node in nodes:
            node.nothing()
        server.shutdown(timeout=WAIT)
        for node in nodes:
            with node:
                assert node.ended() == (
                    CloseCode.GOING_AWAY,
                    "the relay is shutting down; connect again",
                )
        with pytest.raises(ConnectionError):
            Node(server, 1)


def test_shutdown_does_not_wait_for_a_twin_that_does_not_answer() -> None:
    with served() as server, raw(server, 1), raw(server, 2, buffer=4096):
        alone(server, Address(1), Address(2))
        server.shutdown(timeout=WAIT)
        assert not len(server.relay.sessions)


def test_what_was_not_written_at_a_shutdown_is_not_sent_twice() -> None:
    with served() as server, Node(server, 1) as one:
        uids = [one.ask(one.address).uid for _ in range(100)]
        got = [one.take().uid for _ in range(100)]
        server.shutdown(timeout=WAIT)
        assert got == uids
        assert one.next() is None


def test_a_forked_child_serves_nothing_and_the_parent_goes_on() -> None:
    with served() as server, Node(server, 1) as one, Node(server, 2) as two:
        two.nothing()
        pid = os.fork()
        if not pid:
            alive = len(server.relay.sessions) or server.relay.health()["trouble"] is None
            os._exit(1 if alive else 0)
        assert os.waitpid(pid, 0)[1] == 0
        one.ask(two.address, uid="parent")
        assert two.take().uid == "parent"


# Many


def test_idle_twins_are_held_by_one_thread_each() -> None:
    with served() as server:
        before = threading.active_count()
        nodes = [raw(server, 1 + n % 9, f"s{n}") for n in range(200)]
        wait_for(lambda: len(server.relay.sessions) == 200, "200 sessions")
        assert threading.active_count() - before == 200
        for node in nodes:
            node.send_frame(CLOSE_FRAME, close_payload(1000))
        alone(server)
        for node in nodes:
            node.sock.close()
        assert server.relay.close(Deadline(0)) is None  # type: ignore[func-returns-value]
