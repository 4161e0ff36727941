"""Check steps of the doctor that no set-up of the ten comes by."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme

import wsmux
from wsmux.doctor import Plan, Report, Status, network
from wsmux.doctor.examine import STEPS
from wsmux.doctor.report import Failed

from ..helpers.broken_setups import (
    SHORT,
    answering,
    bad,
    black_hole,
    echoing,
    examined,
    failing,
    local,
    only,
    upgrading,
)
from ..helpers.proxies import http_proxy, playing, socks5_proxy
from ..helpers.raw_peer import CLOSE_FRAME, RawPeer, close_payload
from ..helpers.timeouts import WAIT


def test_an_unknown_name() -> None:
    [step] = bad(examined("ws://no-such-host.invalid/"))
    assert (step.name, step.status) == ("dns", Status.FAILED)
    assert "no-such-host.invalid" in step.fact


def test_a_known_name_is_looked_up() -> None:
    report = Report("", STEPS)
    network.look_up(report, network.Place("localhost", 80, None))
    assert "127.0.0.1" in report.steps[0].fact


def test_a_port_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def dial(*_: Any) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", dial)
    with pytest.raises(Failed, match="black hole"):
        network.reach(Report("", STEPS), network.Place("192.0.2.1", 80, None), SHORT)


def test_an_unreachable_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def dial(*_: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", dial)
    with pytest.raises(Failed, match="unreachable"):
        network.reach(Report("", STEPS), network.Place("192.0.2.1", 80, None), SHORT)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "403"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "cut short"),
    ],
)
def test_a_proxy_that_is_none_or_refuses(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, told: str
) -> None:
    with playing(answering(answer)) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        [step] = bad(examined("ws://192.0.2.1/"))
    assert (step.name, step.status) == ("proxy", Status.FAILED)
    assert told in step.fact


def test_a_proxy_is_passed_by_where_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, str]] = []
    with echoing() as server, playing(http_proxy(seen)) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert "opened a tunnel" in only(examined(server.url), "proxy").fact
        seen.clear()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert "none" in only(examined(server.url), "proxy").fact
    assert not seen


def test_a_socks_proxy_is_left_to_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    place = network.place_of("ws://192.0.2.1/")
    assert place.proxy is None
    with playing(socks5_proxy()) as port:
        monkeypatch.setenv("http_proxy", f"socks5://127.0.0.1:{port}")
        report = Report("", STEPS)
        with pytest.raises(network.OPAQUE):
            network.reach(report, network.place_of("ws://192.0.2.1/"), SHORT)
    assert only(report, "proxy").status is Status.SKIPPED


def tls(authority: trustme.CA, days: float | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    until = None if days is None else datetime.now(UTC) + timedelta(days=days)
    authority.issue_cert("127.0.0.1", not_after=until).configure_cert(context)
    return context


def test_a_certificate_that_ends_soon_and_one_that_nobody_checks() -> None:
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    with echoing(ssl_context=tls(authority, 3)) as server:
        soon = only(examined(server.url, ssl_context=trusting), "tls")
        blindly = only(examined(server.url, ssl_context=blind), "tls")
    assert (soon.status, soon.fix) == (Status.WARNING, "renew it")
    assert (blindly.status, blindly.fix) == (Status.WARNING, "leave out --insecure")


@pytest.mark.parametrize(
    ("script", "told"),
    [(black_hole, "no answer to TLS"), (lambda sock: sock.sendall(b"HTTP/1.1 400 "), "TLS failed")],
)
def test_a_port_that_speaks_no_tls(script: Any, told: str) -> None:
    with playing(script) as port:
        context = ssl.create_default_context()
        [step] = bad(examined(local(port, "wss"), timeout=SHORT, ssl_context=context))
    assert (step.name, step.status) == ("tls", Status.FAILED)
    assert told in step.fact


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "--token-file"),
        (b"HTTP/1.1 302 Found\r\nLocation: gopher://a/\r\n\r\n", "wsmux server"),
        (b"HTTP/1.1 418 Teapot\r\n\r\n", "wsmux server"),
        (b"", "server"),
    ],
)
def test_other_answers_to_an_upgrade(answer: bytes, fix: str) -> None:
    with playing(answering(answer)) as port:
        [step] = bad(examined(local(port)))
    assert (step.name, step.status) == ("upgrade", Status.FAILED)
    assert fix in step.fix


def test_a_server_that_turns_away_behind_the_upgrade() -> None:
    def refuse(peer: RawPeer) -> None:
        peer.send_frame(CLOSE_FRAME, close_payload(1008, b"not you"))
        peer.recv_close()

    with playing(upgrading(refuse)) as port:
        [step] = bad(examined(local(port)))
    assert (step.name, step.status) == ("wire", Status.FAILED)
    assert "not you" in step.fact


def test_a_server_that_takes_no_streams_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()

    def handle(connection: wsmux.Connection) -> None:
        connection.go_away()
        going.set()
        connection.wait_closed()

    def connect(plan: Plan, *args: Any) -> wsmux.Connection:
        connection = connect_at_once(plan, *args)
        assert going.wait(WAIT)
        return connection

    connect_at_once = Plan.connect
    monkeypatch.setattr(Plan, "connect", connect)
    with wsmux.serve(handler=handle) as server:
        step = only(examined(server.url), "wire")
    assert step.status is Status.WARNING
    assert "takes no streams" in step.fact


@pytest.mark.parametrize(("pings", "name"), [(1, "wire"), (2, "rtt"), (5, "rtt")])
def test_a_connection_that_does_not_last_is_told(pings: int, name: str) -> None:
    with playing(failing(pings)) as port:
        [step] = bad(examined(local(port)))
    assert (step.name, step.status) == (name, Status.FAILED)
    assert "out of order" in step.fact


def test_a_socks_proxy_leaves_the_steps_below_to_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with playing(socks5_proxy(refuse=5)) as port:
        monkeypatch.setenv("http_proxy", f"socks5://127.0.0.1:{port}")
        report = examined("ws://192.0.2.1/", timeout=SHORT)
    skipped = [step.name for step in report.steps[:4] if step.status is Status.SKIPPED]
    assert skipped == ["proxy", "tcp", "tls"]
    assert only(report, "upgrade").status is Status.FAILED
