"""Prove the harness: the two Yamux peers talk to each other as the tests expect them to."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ..helpers.interop.link import HOST, digests, good, yamux_marks
from ..helpers.interop.peer_process import PeerError, PeerProcess, generate, sha256

pytestmark = yamux_marks

SIZE = 300_000


class Peers(NamedTuple):
    client: PeerProcess
    server: PeerProcess


@pytest.fixture(params=["node-to-python", "python-to-node"])
def peers(
    request: pytest.FixtureRequest,
    carrier: str,
    node_yamux: PeerProcess,
    python_yamux: PeerProcess,
) -> Peers:
    both = [node_yamux, python_yamux]
    if request.param == "python-to-node":
        both.reverse()
    for peer in both:
        peer.call("fresh")
    client, server = both
    port = server.call("listen", carrier=carrier, host=HOST)["port"]
    client.call("connect", carrier=carrier, host=HOST, port=port)
    server.call("connected")
    return Peers(client, server)


def test_peers_run_the_pinned_versions(node_yamux: PeerProcess, python_yamux: PeerProcess) -> None:
    assert (node_yamux.version, python_yamux.version) == ("8.0.3", "0.8.1")


def test_peers_agree_on_the_subprotocol(peers: Peers, carrier: str) -> None:
    expected = "yamux" if carrier == "ws" else None
    assert [peer.call("report").get("subprotocol") for peer in peers] == [expected, expected]


@pytest.mark.parametrize("opener", ["client", "server"])
def test_peers_echo_each_other(peers: Peers, opener: str) -> None:
    one, other = peers if opener == "client" else reversed(peers)
    other.call("incoming", mode="echo")
    answers = one.call("exchangeMany", count=10, seed="echo", size=SIZE, chunk=SIZE)
    assert good(answers) == digests("echo", 10, SIZE)
    assert {answer["end"] for answer in answers} == {"fin"}


def test_peers_generate_the_same_bytes(peers: Peers) -> None:
    stream = peers.client.call("open")["handle"]
    written = peers.client.call("write", stream=stream, seed="same", size=5000)
    assert written["sha256"] == sha256(generate("same", 5000))


def test_peers_know_the_frames_they_exchanged(peers: Peers) -> None:
    opened = peers.client.call("open")
    peers.client.call("write", stream=opened["handle"], hex=b"twelve bytes".hex())
    accepted = peers.server.call("accept")["handle"]
    peers.server.call("read", stream=accepted)
    peers.client.call("reset", stream=opened["handle"])
    with pytest.raises(PeerError):
        peers.server.call("write", stream=accepted, seed="too late", size=SIZE)
    sent = peers.client.call("report")["sent"]
    received = peers.server.call("report")["received"]
    assert sent["dataBytes"] == received["dataBytes"] == sent["largest"] == 12
    reset = {"type": "window", "flags": ["RST"], "stream": opened["id"], "length": 0}
    assert reset in sent["frames"]
    assert reset in received["frames"]


def test_peers_measure_a_round_trip(peers: Peers) -> None:
    assert all(peer.call("ping")["milliseconds"] >= 0 for peer in peers)


def test_error_in_a_command_is_told(peers: Peers) -> None:
    for peer in peers:
        with pytest.raises(PeerError, match="no command jump"):
            peer.call("jump")


def test_command_without_an_answer_times_out(peers: Peers) -> None:
    for peer in peers:
        with pytest.raises(PeerError, match="accept|inbound stream"):
            peer.call("accept", timeout=0.05)
