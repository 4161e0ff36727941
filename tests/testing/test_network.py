"""Turn the clock of a network in memory, and see each fault come when and where it was asked."""

from __future__ import annotations

import errno

import pytest

import wsmux
from wsmux.protocols import native
from wsmux.testing import End, Faults, MuxEnd, Network

from ..helpers.wires import NAMES

KIB = 1024
DATA = bytes(range(256)) * 40


class Pipe(End):
    """An end that keeps what comes, and sends what it is told to."""

    def __init__(self) -> None:
        self.came: list[tuple[float, bytes]] = []
        self.ended_at: float | None = None
        self.error: OSError | None = None
        self.say = b""
        self.silent = False  # nothing further is said

    @property
    def received(self) -> bytes:
        return b"".join(data for _, data in self.came)

    def receive(self, data: bytes, now: float) -> None:
        self.came.append((now, data))

    def end_of_file(self, now: float) -> None:
        self.ended_at = now

    def lost(self, error: OSError, now: float) -> None:
        self.error = error

    def output(self, now: float) -> bytes:
        said, self.say = self.say, b""
        return said

    def output_ended(self) -> bool:
        return self.silent


def piped(**faults: Faults) -> tuple[Network, Pipe, Pipe]:
    network, client, server = Network(**faults), Pipe(), Pipe()
    network.join(client, server)
    return network, client, server


def test_bytes_are_late_by_the_latency_and_no_time_is_spent() -> None:
    network, client, server = piped(up=Faults(latency=750.0))
    client.say = DATA
    network.run(3600)
    assert server.came == [(750.0, DATA)]
    assert network.now == 750.0


def test_bytes_arrive_at_the_rate() -> None:
    network, client, server = piped(up=Faults(rate=1000))
    client.say = DATA
    network.run()
    assert network.now == pytest.approx(len(DATA) / 1000, rel=0.01)
    assert sum(len(data) for at, data in server.came if at <= 5) == pytest.approx(5000, rel=0.01)


def test_a_slow_way_leaves_bytes_with_their_sender() -> None:
    network, client, server = piped(up=Faults(rate=1000, buffer=1000))
    client.say = DATA
    network.run(seconds=1)
    assert network.now == 1.0
    assert network.counters("up").received <= 3100
    network.run()
    assert server.received == DATA


def test_a_burst_after_a_pause_is_no_earlier_than_the_latency() -> None:
    network, client, server = piped(up=Faults(rate=1000, latency=1.0))
    network.sleep(100)
    client.say = DATA[:500]
    network.run()
    assert server.came[0][0] >= 101.0
    assert server.came[-1][0] == pytest.approx(101.5, abs=0.05)


def test_jitter_keeps_the_order_and_comes_again_from_its_seed() -> None:
    arrivals = []
    for seed in (1, 1, 2):
        network = Network(seed=seed, up=Faults(latency=0.1, jitter=1.0))
        client, server = Pipe(), Pipe()
        network.join(client, server)
        client.say = DATA * 3
        network.run()
        assert server.received == DATA * 3
        arrivals.append([at for at, _ in server.came])
    assert arrivals[0] == arrivals[1] == sorted(arrivals[0])
    assert arrivals[0] != arrivals[2]


def test_pieces_come_with_gaps_between_them() -> None:
    network, client, server = piped(up=Faults(slice=4, gap=0.5))
    client.say = b"0123456789"
    network.run()
    assert server.came == [(0.0, b"0123"), (0.5, b"4567"), (1.0, b"89")]


def test_few_bytes_are_gathered_until_they_have_waited() -> None:
    network, client, server = piped(up=Faults(coalesce=100, coalesce_wait=2.0))
    client.say = b"few"
    network.run()
    assert server.came == [(2.0, b"few")]


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_cut_ends_both_behind_exactly_so_many_bytes(how: str) -> None:
    network, client, server = piped()
    network.cut_after(1001, way="up", how=how)  # type: ignore[arg-type]
    client.say = DATA
    network.run()
    assert server.received == DATA[:1001]
    assert network.connections == 0
    for end in (client, server):
        reset = end.error is not None and end.error.errno == errno.ECONNRESET
        assert (reset, end.ended_at) == ((True, None) if how == "rst" else (False, 0.0))


def test_a_black_hole_holds_everything_back_and_loses_nothing() -> None:
    network, client, server = piped(up=Faults(latency=1.0))
    client.say = b"early"
    network.run(seconds=0.5)
    network.freeze()
    network.sleep(10)
    assert (server.came, network.now) == ([], 10.5)
    client.say = b", late"
    network.thaw()
    network.run()
    assert server.came == [(10.5, b"early"), (11.5, b", late")]


def test_lost_bytes_are_gone() -> None:
    network, client, server = piped()
    network.lose("up")
    client.say = DATA
    network.run()
    network.lose()
    client.say = b"found"
    network.run()
    assert server.received == b"found"
    assert network.counters("up").lost == len(DATA)


def test_a_half_close_ends_one_way() -> None:
    network, client, server = piped()
    network.half_close("up")
    client.say, server.say = b"unheard", b"heard"
    network.run()
    assert (server.received, client.received) == (b"", b"heard")
    assert (server.ended_at, client.ended_at) == (0.0, None)
    assert network.counters("up").lost == 7


def test_ends_that_fall_silent_end_the_connection() -> None:
    network, client, server = piped(up=Faults(latency=1.0))
    client.say, client.silent = b"last", True
    network.run()
    assert (server.received, server.ended_at) == (b"last", 1.0)
    assert network.connections == 1
    server.silent = True
    network.run()
    assert network.connections == 0


def test_two_ends_that_never_rest_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsmux.testing.network.MAX_ROUNDS", 100)

    class Echo(Pipe):
        def receive(self, data: bytes, now: float) -> None:
            self.say += data

    network, one, other = Network(), Echo(), Echo()
    network.join(one, other)
    one.say = b"x"
    with pytest.raises(RuntimeError, match="do not come to rest"):
        network.run()


@pytest.mark.parametrize("protocol", NAMES)
def test_more_than_the_window_waits_for_credit_and_arrives(protocol: str) -> None:
    config = wsmux.Config(receive_window=1000)
    network = Network(up=Faults(latency=0.1), down=Faults(latency=0.1))
    client, server = (MuxEnd(role, protocol, config=config) for role in ("client", "server"))
    network.join(client, server)
    network.run()  # Bymux permits streams first
    stream = client.open_stream()
    client.write(stream, DATA * 30)
    client.close_write(stream)
    network.run()
    assert bytes(server.received[stream]) == DATA * 30
    assert stream in server.ended


def test_a_timer_of_an_end_is_due_when_time_goes_by() -> None:
    """js-ws gives a peer that does not answer a close some seconds."""
    network = Network()
    client, server = MuxEnd("client", "js-ws"), MuxEnd("server", "js-ws")
    network.join(client, server)
    stream = client.open_stream()
    client.write(stream, b"x")
    network.run()
    server.machine.close_read(stream)
    network.freeze("down")
    client.close_write(stream)
    network.run()
    due = client.next_timer()
    network.sleep(native.JS_WS_CLOSE_DELAY + 1)
    assert network.now == native.JS_WS_CLOSE_DELAY + 1
    assert due is None or due <= network.now


@pytest.mark.parametrize("carrier", ["websocket", "bytes"])
def test_a_peer_that_breaks_a_rule_ends_the_connection_with_its_code(carrier: str) -> None:
    network = Network()
    client = MuxEnd("client", carrier=carrier)  # type: ignore[arg-type]
    server = MuxEnd("server", carrier=carrier)  # type: ignore[arg-type]
    network.join(client, server)
    stream = client.open_stream()
    network.run()
    network.corrupt_after(1 if carrier == "bytes" else 0, way="up", mask=0x70)
    client.write(stream, b"x")
    network.run()
    assert isinstance(server.error, wsmux.ConnectionClosedError)
    assert isinstance(client.error, wsmux.ConnectionClosedError)
    assert server.error.code == client.error.code == 1002
    assert network.connections == 0


def test_a_stream_that_the_wire_does_not_permit_yet_is_refused() -> None:
    client = MuxEnd("client", "bymux")
    with pytest.raises(RuntimeError, match="before the peer permits it"):
        client.open_stream()
