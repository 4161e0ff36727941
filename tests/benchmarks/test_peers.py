"""Take small figures of each library that is measured against, and of a naive mux."""

from __future__ import annotations

import json
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from inspect import getsourcelines
from queue import SimpleQueue
from typing import Any

import pytest

from benchmarks.peers import find_peers, naive, raw
from benchmarks.peers.naive import Naive
from benchmarks.words import Line

from ..helpers.benchmark_commands import run

pytestmark = pytest.mark.tools

TINY = ("--repetitions", "1", "--seconds", "0.01", "--pin", "no", "--json")

# Seconds until a test fails rather than hangs.
PATIENCE = 30.0

MOST_LINES = 60


def figures_of(peers: str, measures: str) -> dict[str, Any]:
    for name in peers.split(","):
        if reason := find_peers()[name].lacks():
            pytest.skip(f"{name} cannot be measured: {reason}")
    done = run(*TINY, "--peers", peers, "--measures", measures)
    assert done.returncode == 0, done.stderr.decode()
    (each,) = json.loads(done.stdout)["passes"]
    assert each["failures"] == []
    measured: dict[str, Any] = each["measures"]
    for measure in measured.values():
        for figures in measure["variants"].values():
            assert figures["min"] > 0
    return measured


def test_both_ends_over_tls_are_measured() -> None:
    measured = figures_of("tls,raw-tls,wsmux-tls", "upload,download,echo,ping-1k")
    assert measured["upload"]["variants"]["wsmux-tls"]["ratio"] is None  # its base is wsmux
    assert set(measured["download"]["variants"]) == {"tls", "raw-tls", "wsmux-tls"}
    assert set(measured["echo"]["variants"]) == {"wsmux-tls"}  # others may not do both at once


def test_another_library_is_measured() -> None:
    names = ["upload", "download", "echo", "ping-64", "ping-1k-10", "opens", "tail-p99"]
    assert set(figures_of("grpcio", ",".join(names))) == set(names)


def test_a_recorder_is_measured_beside_connections_without() -> None:
    measured = figures_of("wsmux-watched", "watched-ping,watched-opens")
    assert {name: set(each["variants"]) for name, each in measured.items()} == {
        name: {"wsmux-watched"} for name in ("watched-ping", "watched-opens")
    }


def test_what_resuming_costs_is_measured_and_what_a_cut_does() -> None:
    names = {"resumable-ping", "resumable-cut"}
    assert set(figures_of("wsmux-resumable", ",".join(names))) == names


@pytest.mark.long
@pytest.mark.parametrize("peer", ["tcp", "raw", "naive", "grpcio"])
def test_what_takes_long_is_measured(peer: str) -> None:
    names = ["ping-1k-1000", "connections-50", "idle-stream-server", "idle-stream-client"]
    taken = [name for name in names if name not in find_peers()[peer].leaves_out]
    assert set(figures_of(peer, ",".join(taken))) == set(taken)


# The naive mux


def test_the_naive_mux_is_short() -> None:
    lines = [*getsourcelines(naive.Stream)[0], *getsourcelines(naive.Mux)[0]]
    assert len(lines) <= MOST_LINES


def echo(line: Line) -> None:
    while data := line.receive(1):
        line.send(data)


class Echoing(Naive):
    def serve_line(self, line: Line) -> None:
        naive.Mux(line, echo).run()


def sent_and_received(line: Line, data: bytes, generator: random.Random) -> bytes:
    """Send in pieces of any size while another thread receives; the server sends all back."""
    received = bytearray()

    def send() -> None:
        place = 0
        while place < len(data):
            end = place + generator.randrange(1, 200_000)
            line.send(data[place:end])
            place = end

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    while len(received) < len(data):
        piece = line.receive(1)
        assert piece
        received += piece
    thread.join(PATIENCE)
    line.close()
    return bytes(received)


def test_the_naive_mux_is_byte_exact() -> None:
    peer, streams, size = (
        Echoing("echoing", "an echo"),
        4,
        2 * naive.WINDOW,
    )  # more than one window of each
    with peer.serve() as address, peer.connect(address) as client:
        opener = client._open

        def exchange(seed: int) -> bool:
            generator = random.Random(seed)
            data = generator.randbytes(size)
            return sent_and_received(opener(), data, generator) == data

        with ThreadPoolExecutor(streams) as pool:
            assert list(pool.map(exchange, range(streams), timeout=PATIENCE)) == [True] * streams


def test_the_naive_mux_holds_a_writer_back() -> None:
    sent: list[bytes] = []
    all_of_it = threading.Event()
    received: SimpleQueue[bytes] = SimpleQueue()

    def send(message: bytes) -> None:
        sent.append(message)
        if sum(len(each) - naive.HEAD.size for each in sent) == naive.WINDOW:
            all_of_it.set()

    mux = naive.Mux(Line(send, lambda size: received.get(), lambda: None), echo)
    line = mux.open()
    reader = threading.Thread(target=mux.run)
    writer = threading.Thread(target=line.send, args=(bytes(naive.WINDOW + 1),))
    reader.start()
    writer.start()
    assert all_of_it.wait(PATIENCE)
    assert writer.is_alive()  # it has no credit for the last byte
    received.put(naive.HEAD.pack(naive.ACK, 0) + (1).to_bytes(4, "big"))
    writer.join(PATIENCE)
    assert sent[-1] == naive.HEAD.pack(naive.DATA, 0) + bytes(1)
    received.put(b"")
    reader.join(PATIENCE)


@pytest.mark.parametrize("sent", [b"", b"GET / HTT"])
def test_the_raw_server_minds_no_client_that_leaves(sent: bytes) -> None:
    ours, peer = socket.socketpair()
    with ours:
        peer.sendall(sent)
        peer.close()
        raw._serve(echo, ours)
