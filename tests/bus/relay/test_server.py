"""What a relay says over HTTP: to upgrades with good and bad tokens, and to plain requests."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from contextlib import ExitStack, closing
from typing import Any

import pytest

from wsmux.bus.relay import server as serving
from wsmux.bus.relay.memory_queues import MemoryQueues
from wsmux.bus.relay.server import MAX_POSTS, RelayServer
from wsmux.bus.session.link import dial
from wsmux.bus.twins.sources import CachedTwins
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import MAX_ENVELOPE
from wsmux.bus.wire.tokens import MAX_LIFE, make_token
from wsmux.config import Config
from wsmux.exceptions import HandshakeError
from wsmux.handshake.http_request import respond
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.memory import REPORT_STEP, process_memory

from ...helpers.bus.captured import COMPUTED, NOW, TWINS, rows
from ...helpers.bus.links import Running
from ...helpers.bus.relays import DOMAIN, Node, Table, fetch, get, identity, metric, relay, served
from ...helpers.certificates import Certificates
from ...helpers.inside import waited_for
from ...helpers.raw_peer import WAIT, RawPeer, in_thread, read_head, request, wait_for

KNOWN = {
    "relay_message_rx",
    "relay_message_tx",
    "relay_message_rx_bytes",
    "relay_message_tx_bytes",
    'relay_worker_connections{worker="0"}',
    'relay_session_evictions_total{reason="closed"}',
    'relay_session_evictions_total{reason="back_pressure_timeout"}',
    'relay_session_evictions_total{reason="cancelled"}',
    "process_open_fds",
}


def upgrade(
    server: RelayServer, target: str, headers: dict[str, str | None] | None = None
) -> tuple[int, str, dict[str, str]]:
    """Ask for a WebSocket by hand; return the status, the text and the headers."""
    with closing(socket.create_connection(("127.0.0.1", server.port), WAIT)) as sock:
        fields = {"Sec-WebSocket-Protocol": None, **(headers or {})}
        sock.sendall(request(DOMAIN, fields, f"GET {target} HTTP/1.1"))
        first, answered = read_head(sock)
        body = b""
        while len(body) < int(answered.get("content-length", 0)):
            body += sock.recv(1000)
        return int(first.split()[1]), body.decode().strip(), answered


def token(twin: int = 1, session: str | None = None, now: float | None = None) -> str:
    return make_token(identity(twin), twin, session, int(now or time.time()))


# Tokens


@pytest.mark.parametrize("path", ["/", "/any/path", "/metrics", "/healthz"])
def test_an_upgrade_on_any_path_is_taken(path: str) -> None:
    with served() as server:
        assert upgrade(server, f"{path}?{token()}")[0] == 101


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_token_may_be_a_bearers(scheme: str) -> None:
    with served() as server:
        assert upgrade(server, "/", {"Authorization": f"{scheme} {token()}"})[0] == 101


@pytest.mark.parametrize("origin", ["https://elsewhere.test", "null"])
def test_pages_of_any_origin_may_connect(origin: str) -> None:
    with served() as server:
        assert upgrade(server, f"/?{token()}", {"Origin": origin})[0] == 101


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}]
)
def test_an_upgrade_without_a_token_is_400(headers: dict[str, str | None]) -> None:
    with served() as server:
        status, text, _ = upgrade(server, "/", headers)
        assert status == 400
        assert "a token is missing" in text


STATUSES = COMPUTED["tokens"]["cases"]


@pytest.mark.parametrize("row", rows(STATUSES, "why"))
def test_tokens_get_the_status_of_the_known_relay(
    row: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table()
    table.twins = TWINS
    monkeypatch.setattr("wsmux.bus.relay.relay.time.time", lambda: NOW)
    departs = row["why"] in (
        "valid for ten years (not limited by the real relay)",
        "expired a second ago",  # within the leeway
    )
    with served(relay(table)) as server:
        query = "" if row["token"] is None else f"?{row['token']}"
        status, text, _ = upgrade(server, f"/{query}")
    assert (status == row["status"]) is not departs
    assert (status == 101) is not bool(text)


def test_a_refusal_tells_why_and_what_the_time_is() -> None:
    with served() as server:
        status, text, headers = upgrade(server, f"/?{token(now=time.time() - 10_000)}")
    assert status == 401
    assert "expired" in text
    assert "the relay's clock says 20" in text
    assert headers["www-authenticate"] == "Bearer"


def test_an_unknown_twin_is_401_and_a_directory_that_is_down_500() -> None:
    table = Table()
    with served(relay(table)) as server:
        assert upgrade(server, f"/?{token(77)}")[:2] == (401, "there is no twin 77")
        table.down = True
        status, text, _ = upgrade(server, f"/?{token()}")
        assert (status, "the table is down" in text) == (500, True)


def test_a_session_that_is_no_text_is_401() -> None:
    half = token(1, "a\ud800")
    with served() as server:
        status, text, _ = upgrade(server, f"/?{half}")
    assert (status, text) == (401, "the claim sid of a token must be valid Unicode, null or absent")


def test_a_session_cannot_write_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with served() as server, Node(server, 1, "s\nmore\x1b[2J") as one:
        one.ask(Address(9, "t\nmore"), tags="fail-fast")
        one.refused()
    assert "1:s more [2J connected" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_a_link_hears_why_it_was_refused() -> None:
    with served() as server:
        with pytest.raises(HandshakeError, match="answered 401 .*: there is no twin 77") as caught:
            dial(server.url, lambda: token(77), Deadline(WAIT))
        assert caught.value.status == 401


def test_a_token_is_only_looked_at_when_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as server, Node(server, 1) as one:
        now = time.time()
        monkeypatch.setattr("wsmux.bus.relay.relay.time.time", lambda: now + 2 * MAX_LIFE)
        one.nothing()


def test_tokens_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good, bad = token(), token(77)
    with served() as server, Node(server, 1):
        assert upgrade(server, f"/?{good}")[0] == 101
        assert upgrade(server, f"/?{bad}")[0] == 401
        assert upgrade(server, f"/?{bad}x", {"Sec-WebSocket-Key": None})[0] == 400
        assert get(server, f"/?{bad}")[0] == 404
    assert "there is no twin 77" in caplog.text
    assert good not in caplog.text
    assert bad not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-WebSocket-Key": None}, 400),
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Version": "8"}, 426),
        ({"Sec-WebSocket-Version": None}, 426),
    ],
)
def test_a_bad_upgrade_is_refused(headers: dict[str, str | None], status: int) -> None:
    with served() as server:
        assert upgrade(server, f"/?{token()}", headers)[0] == status


# Plain requests


@pytest.mark.parametrize("path", ["/", "/x", "/metrics/", "/healthz/x", "//"])
def test_other_pages_are_not_found(path: str) -> None:
    with served() as server:
        assert get(server, path)[:2] == (404, b"page not found\n")


@pytest.mark.parametrize("path", ["/", "/x", "/metrics"])
def test_a_post_needs_somebody_who_takes_it(path: str) -> None:
    with served() as server:
        assert fetch(server.url + path, b"x")[:2] == (404, b"page not found\n")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "get", "HEAD"])
def test_other_methods_are_405(method: str) -> None:
    with served() as server, closing(socket.create_connection(("127.0.0.1", server.port))) as sock:
        sock.settimeout(WAIT)
        sock.sendall(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert read_head(sock)[0].startswith("HTTP/1.1 405 ")


def test_metrics_have_the_names_of_the_known_relay() -> None:
    with served() as server, Node(server, 1) as one:
        one.nothing()
        status, body, headers = get(server, "/metrics")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain")
        lines = body.decode().splitlines()
        names = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
        assert names >= KNOWN
        assert metric(server, "relay_message_rx") == 1
        assert metric(server, "relay_message_tx") == 1
        assert metric(server, "relay_message_tx_bytes") > metric(server, "relay_message_rx_bytes")


def test_metrics_have_the_time_of_a_handshake_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many names take a slow client longer than a refusal."""
    given: list[float] = []

    def noted(*arguments: Any) -> None:
        given.append(arguments[-1])
        respond(*arguments)

    monkeypatch.setattr(serving, "respond", noted)
    with served(config=Config(handshake_timeout=WAIT)) as server:
        assert get(server, "/metrics")[0] == 200
    assert given == [WAIT]


def test_the_numbers_of_connections_that_ended_stay() -> None:
    with served() as server:
        with Node(server, 1) as one:
            one.nothing()
        wait_for(lambda: metric(server, 'relay_worker_connections{worker="0"}') == 0, "the end")
        assert metric(server, "relay_message_rx") == 1


def test_the_cache_of_twins_is_shown() -> None:
    with (
        served(relay(CachedTwins(Table()))) as server,
        Node(server, 1),
        Node(server, 2, "a") as two,
    ):
        two.ask(Address(1, "away"))
        two.ask(Address(77))
        two.refused()
        assert metric(server, "rmb_cache_entries") == 2
        assert metric(server, "rmb_cache_misses_total") == 3


def test_health_is_told() -> None:
    with served() as server, Node(server, 1) as one:
        one.nothing()
        status, body, headers = get(server, "/healthz")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == {"domains": [DOMAIN], "sessions": 1, "trouble": None}


def test_trouble_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = MemoryQueues()
    monkeypatch.setattr(queues, "trouble", lambda: "no Redis")
    with served(relay(queues=queues)) as server:
        status, body, _ = get(server, "/healthz")
        assert (status, json.loads(body)["trouble"]) == (503, "no Redis")


# Envelopes of other relays


def taking(answer: tuple[int, str] = (202, "")) -> tuple[list[bytes], object]:
    taken: list[bytes] = []

    def take(data: bytes) -> tuple[int, str]:
        taken.append(data)
        return answer

    return taken, take


def test_a_post_is_taken_whatever_its_type() -> None:
    taken, take = taking()
    with served(take_in=take) as server:
        assert fetch(server.url + "/", b"envelope")[0] == 202
        assert fetch(server.url + "/?a=b", b"", {"Content-Type": "text/x"})[0] == 202
    assert taken == [b"envelope", b""]


def test_a_refusal_of_a_post_is_told() -> None:
    _, take = taking((404, "destination offline"))
    with served(take_in=take) as server:
        assert fetch(server.url + "/", b"x")[:2] == (404, b"destination offline\n")


def test_a_body_above_the_limit_is_413_before_it_is_read() -> None:
    taken, take = taking()
    with (
        served(take_in=take) as server,
        closing(socket.create_connection(("127.0.0.1", server.port))) as sock,
    ):
        sock.settimeout(WAIT)
        sock.sendall(
            f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_ENVELOPE + 1}\r\n\r\n".encode()
        )
        assert read_head(sock)[0].startswith("HTTP/1.1 413 ")
    assert not taken


def test_an_unfinished_body_is_cut_by_a_shutdown() -> None:
    taken, take = taking()
    with (
        served(take_in=take) as server,
        closing(socket.create_connection(("127.0.0.1", server.port))) as sock,
    ):
        sock.settimeout(WAIT)
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        wait_for(lambda: waited_for(server), "a waiting body")
        server.shutdown(timeout=WAIT)
        RawPeer(sock, masks=True).recv_to_end()
    assert not taken


def test_envelopes_handled_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsmux.bus.relay.server.MAX_POSTS", 1)
    monkeypatch.setattr("wsmux.bus.relay.server.POST_WAIT", 0.01)
    entered, leave = threading.Event(), threading.Event()

    def take(data: bytes) -> tuple[int, str]:
        entered.set()
        leave.wait(WAIT)
        return 202, ""

    with served(take_in=take) as server:
        first = in_thread(lambda: fetch(server.url + "/", b"first")[0])
        assert entered.wait(WAIT)
        status, body, _ = fetch(server.url + "/", b"second")
        leave.set()
        assert (status, b"try again" in body) == (503, True)
        assert first.result(WAIT) == 202


# Bodies that do not come whole


def half_post(stack: ExitStack, server: RelayServer, size: int, sent: int = 0) -> socket.socket:
    """Begin to post a body from an address of its own, and send some of it."""
    sock = socket.create_connection(("127.0.0.1", server.port), WAIT, ("127.0.0.2", 0))
    stack.enter_context(sock)
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    sock.sendall(head + bytes(sent))
    return sock


def test_half_bodies_of_one_address_hold_up_nobody() -> None:
    taken, take = taking()
    with ExitStack() as stack, served(take_in=take) as server:
        for _ in range(2 * MAX_POSTS):
            half_post(stack, server, 1000)
        wait_for(lambda: waited_for(server) == 2 * MAX_POSTS, "bodies that are waited for")
        assert fetch(server.url + "/", b"envelope")[0] == 202
    assert taken == [b"envelope"]


def test_half_bodies_count_as_unfinished_requests_of_their_address() -> None:
    _, take = taking()
    config = Config(max_handshakes_per_address=3)
    with ExitStack() as stack, served(take_in=take, config=config) as server:
        halves = [half_post(stack, server, 1000) for _ in range(3)]
        wait_for(lambda: waited_for(server) == 3, "bodies that are waited for")
        assert read_head(half_post(stack, server, 1000))[0].split()[1] == "429"
        halves[0].sendall(bytes(1000))
        assert read_head(halves[0])[0].split()[1] == "202"
        assert read_head(half_post(stack, server, 4, 4))[0].split()[1] == "202"


def test_a_half_body_gives_its_place_to_others_in_a_full_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wsmux.handshake.admission.PATIENCE", 0.0)
    _, take = taking()
    with ExitStack() as stack, served(take_in=take, max_connections=1) as server:
        held = half_post(stack, server, 1000)
        wait_for(lambda: waited_for(server) == 1, "a body that is waited for")
        assert fetch(server.url + "/", b"envelope")[0] == 202
        assert read_head(held)[0].split()[1] == "503"


def test_bytes_of_bodies_count_for_the_process_and_the_largest_goes() -> None:
    _, take = taking()
    config = Config(max_process_buffer=1 << 20)
    with ExitStack() as stack, served(take_in=take, config=config) as server:
        small = half_post(stack, server, 1 << 19, 1 << 18)
        wait_for(lambda: process_memory.total > (1 << 18) - REPORT_STEP, "what has come")
        large = half_post(stack, server, 1 << 20, (1 << 20) - 1)
        assert read_head(large)[0].split()[1] == "503"
        wait_for(lambda: process_memory.total <= 1 << 19, "what is let go of")
        small.sendall(bytes(1 << 18))
        assert read_head(small)[0].split()[1] == "202"
    assert process_memory.total == 0


# TLS


def test_a_relay_serves_tls(certificates: Certificates) -> None:
    with served(ssl_context=certificates.server) as server:
        link = dial(server.url, token, Deadline(WAIT), ssl_context=certificates.client)
        with Running(link):
            wait_for(lambda: server.relay.sessions.get(Address(1)) is not None, "the session")
