"""Have the doctor tell what a server speaks, and what it makes of an upgrade that got lost."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable

import pytest
from flask import Flask

import wsmux
from wsmux.doctor import Report, Status, Step, wires
from wsmux.flask import Mux

from ..helpers.broken_setups import (
    SHORT,
    aged,
    answering,
    bad,
    black_hole,
    echo,
    echoing,
    examined,
    local,
    plain_websocket,
    stripping,
)
from ..helpers.proxies import playing
from ..helpers.raw_peer import CLOSE_FRAME, TEXT, Frame, RawPeer, close_payload, read_head
from ..helpers.werkzeug_server import serving
from ..helpers.wires import NAMES

PAGE = b"<!doctype html>\n<html lang=en><title>400 Bad Request</title>\n<h1>Bad Request</h1>"


def status(line: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {line}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def failed(report: Report) -> Step:
    [step] = bad(report)
    assert step.status is Status.FAILED
    assert "<" not in step.fact
    assert "\n" not in step.fact
    return step


# Upgrades that got lost


@pytest.mark.parametrize("lost", [["upgrade", "connection"], ["upgrade"], ["connection"]], ids=str)
@pytest.mark.parametrize("server", ["flask", "wsmux"])
def test_a_proxy_that_does_not_pass_the_upgrade_on_is_blamed(server: str, lost: list[str]) -> None:
    app = Flask("app")
    Mux(app).stream_route("/")(echo)
    behind = serving(app) if server == "flask" else echoing()
    with behind as served:
        port = served if isinstance(served, int) else served.port
        with playing(stripping(port, *lost)) as front:
            step = failed(examined(local(front)))
    assert step.name == "upgrade"
    assert "proxy_http_version 1.1;" in step.fix
    assert "proxy_set_header Upgrade $http_upgrade;" in step.fix
    assert 'proxy_set_header Connection "upgrade";' in step.fix
    assert "changed" not in step.fix


@pytest.mark.parametrize("server", ["flask", "wsmux"])
def test_a_proxy_that_speaks_http_1_0_is_blamed(server: str) -> None:
    app = Flask("app")
    Mux(app).stream_route("/")(echo)
    behind = serving(app) if server == "flask" else echoing()
    with behind as served:
        port = served if isinstance(served, int) else served.port
        with playing(aged(port)) as front:
            step = failed(examined(local(front)))
    assert step.name == "upgrade"
    assert step.fact.endswith("(the request arrives as HTTP/1.0)")
    assert "proxy_http_version 1.1;" in step.fix


def test_a_refusal_like_that_of_a_plain_get_is_told_as_one() -> None:
    with playing(answering(status("400 BAD REQUEST", PAGE))) as port:
        step = failed(examined(local(port)))
    assert step.name == "upgrade"
    assert step.fact.endswith("(a plain GET is answered the same: the upgrade does not arrive)")
    assert "proxy_set_header Upgrade" in step.fix


@pytest.mark.parametrize("to_get", [status("200 OK", b"hello"), status("400 No", b"no token"), b""])
def test_a_refusal_unlike_that_of_a_plain_get_is_the_servers_own(to_get: bytes) -> None:
    def script(sock: socket.socket) -> None:
        upgrade = "upgrade" in read_head(sock)[1]
        sock.sendall(status("400 Bad Request", PAGE) if upgrade else to_get)

    with playing(script) as port:
        step = failed(examined(local(port)))
    assert step.name == "upgrade"
    assert "see what the server says" in step.fix


def test_a_second_request_carries_the_headers_of_the_first() -> None:
    heads: list[dict[str, str]] = []

    def script(sock: socket.socket) -> None:
        heads.append(read_head(sock)[1])
        sock.sendall(status("400 Bad Request", PAGE))

    with playing(script) as port:
        failed(examined(local(port, path="/a?b"), headers=["Authorization: Bearer x"]))
    assert len(heads) == 3
    assert [head["authorization"] for head in heads] == ["Bearer x"] * 3
    assert ["upgrade" in head for head in heads] == [True, True, False]


@pytest.mark.parametrize("code", [403, 404, 502])
def test_no_page_is_told_as_a_fact(code: int) -> None:
    with playing(answering(status(f"{code} No", PAGE))) as port:
        step = failed(examined(local(port)))
    assert f"answered {code} " in step.fact


# WebSockets that carry no streams


def echo_message(peer: RawPeer, frame: Frame) -> None:
    peer.send_frame(frame.opcode, frame.payload)


def say_nothing(peer: RawPeer, frame: Frame) -> None:
    assert frame.payload


def say_something(peer: RawPeer, frame: Frame) -> None:
    peer.send_frame(TEXT, b'{"error": "no JSON"}')


def hang_up(peer: RawPeer, frame: Frame) -> None:
    peer.send_frame(CLOSE_FRAME, close_payload(1003, b"text only"))


# Seconds for a sign of a wire where no sign comes.
QUIET = 0.2
PLAIN = pytest.mark.parametrize("answer", [echo_message, say_nothing, say_something, hang_up])


@PLAIN
@pytest.mark.parametrize("named", [False, True])
def test_a_plain_websocket_is_no_wsmux(
    answer: Callable[[RawPeer, Frame], None], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is not echo_message:  # no answer to a question comes that would have to be waited for
        monkeypatch.setattr(wires, "PATIENCE", QUIET)
    with playing(plain_websocket(answer, named)) as port:
        step = failed(examined(local(port)))
    assert step.name == ("wire" if named else "subprotocol")
    assert step.fact.startswith("a plain WebSocket answers, and speaks none of js-ws, yamux, ")
    assert ("sends back" in step.fact) is (answer is echo_message)
    assert step.fix == "check the address and the path: no wsmux server is there"


@PLAIN
@pytest.mark.parametrize("protocol", NAMES)
def test_a_plain_websocket_is_no_wire_that_needs_no_name(
    answer: Callable[[RawPeer, Frame], None], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is not echo_message:
        monkeypatch.setattr(wires, "PATIENCE", QUIET)
    with playing(plain_websocket(answer)) as port:
        step = failed(examined(local(port), protocol=protocol, subprotocol=None, timeout=SHORT))
    assert step.name == "wire"
    assert "speaks none of" in step.fact


@pytest.mark.parametrize("served", ["yamux", "bymux", "js-ws"])
@pytest.mark.parametrize("named", [False, True])
def test_a_wire_is_found_where_the_handshake_does_not_name_it(served: str, named: bool) -> None:
    """The default wire is asked for; the proxy keeps the server from seeing what is offered."""
    with (
        echoing(protocols=[served]) as server,
        playing(stripping(server.port, "sec-websocket-protocol")) as port,
    ):
        step = failed(examined(local(port)))
    assert step.name == "subprotocol"
    assert step.fact == f"the server does not speak wsmux here, but {served}"
    assert f"--protocol {served}" in step.fix
    assert ("--subprotocol none" in step.fix) is (served != "js-ws")


@pytest.mark.parametrize("protocol", ["wsmux", "yamux", "bymux"])
def test_a_right_wire_without_its_name_is_told_and_helped(protocol: str) -> None:
    with (
        echoing(protocols=[protocol]) as server,
        playing(stripping(server.port, "sec-websocket-protocol")) as port,
    ):
        step = failed(examined(local(port), protocol=protocol))
        helped = examined(local(port), protocol=protocol, subprotocol=None)
    assert step.fact == f"the server speaks {protocol}, but names no subprotocol"
    assert f"--protocol {protocol} --subprotocol none" in step.fix
    assert not helped.failed


@pytest.mark.parametrize(
    ("given", "served"), [("other", ["yamux"]), (None, ["yamux", "wsmux"])], ids=str
)
def test_a_name_that_the_server_does_not_know_is_told(given: str | None, served: list[str]) -> None:
    with echoing(protocols=served) as server:
        step = failed(examined(server.url, protocol="yamux", subprotocol=given))
    assert step.name == "subprotocol"
    assert step.fact == f"the server calls yamux 'yamux', not {given!r}"
    assert step.fix == "leave out subprotocol= (--subprotocol)"


# Plain sockets


@pytest.mark.parametrize(("asked", "served"), list(itertools.permutations(NAMES, 2)))
def test_the_wire_of_a_plain_socket_is_told(asked: str, served: str) -> None:
    with echoing(transport="tcp", protocols=[served]) as server:
        step = failed(examined(server.url, protocol=asked, timeout=SHORT))
    assert step.name == "wire"
    assert step.fact == f"the server does not speak {asked} here, but {served}"
    assert step.fix == f"use protocol={served!r} (--protocol {served})"


def test_a_plain_socket_that_never_answers_is_a_black_hole() -> None:
    with playing(black_hole) as port:
        step = failed(examined(f"tcp://127.0.0.1:{port}", timeout=SHORT))
    assert step.name == "wire"
    assert "a black hole behind the connection" in step.fact


@pytest.mark.parametrize("protocol", NAMES)
def test_a_plain_socket_that_sends_all_back_speaks_no_wire(protocol: str) -> None:
    def script(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            sock.sendall(data)

    with playing(script) as port:
        url = f"tcp://127.0.0.1:{port}"
        step = failed(examined(url, protocol=protocol, timeout=SHORT))
    assert step.name == "wire"
    assert "a plain socket answers, and speaks none of" in step.fact
    assert "it sends back what it gets" in step.fact


def test_a_server_that_takes_no_streams_speaks_its_wire_all_the_same() -> None:
    def handle(connection: wsmux.Connection) -> None:
        connection.go_away()
        connection.wait_closed()

    with wsmux.serve(handler=handle) as server:
        assert not examined(server.url).failed
