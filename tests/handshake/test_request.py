"""A request tells what a client asked for, in one form, whoever has read its head."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

import wsmux
from wsmux import Request
from wsmux.handshake.http_request import read_request
from wsmux.handshake.websocket_server import request_of
from wsmux.runtime.deadline import Deadline

from ..helpers.raw_peer import WAIT
from ..helpers.request_heads import HOST, TAKEN, dial


def asked_with(extra: bytes) -> Request:
    """Return a request whose head has further lines at its end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(TAKEN["plain"].removesuffix(b"\r\n") + extra)
        return request_of(read_request(ours, Deadline(WAIT), 4096))


def asked_of_server(config: wsmux.Config, target: str, **options: Any) -> tuple[Request, int]:
    """Return what a server is told of a client of ours, and the client's port."""
    asked: list[Request | None] = []
    done = threading.Event()

    def handle(connection: wsmux.Connection) -> None:
        asked.append(connection.request)
        done.set()

    with (
        wsmux.serve(handle, config=config) as server,
        wsmux.connect(f"{server.url}{target}", **options) as connection,
    ):
        assert connection.request is None  # it asked itself
        assert done.wait(WAIT)
    assert asked[0] is not None
    return asked[0], int(asked[0].remote_address.rpartition(":")[2])


def test_a_request_cannot_be_changed() -> None:
    request = Request("/", "", {}, "192.0.2.1:5")
    assert (request.header_pairs, request.client_address) == ((), "")
    with pytest.raises(AttributeError):
        request.path = "/other"  # type: ignore[misc]


def test_the_path_is_unquoted_and_the_query_is_not() -> None:
    request, _ = asked_of_server(wsmux.Config(), "/a%20b/%C3%BC?q=%20c&d")
    assert (request.path, request.query) == ("/a b/\xfc", "q=%20c&d")


def test_names_of_headers_are_in_lower_case() -> None:
    request, _ = asked_of_server(wsmux.Config(), "/", headers={"X-Name": "Me"})
    assert request.headers["x-name"] == "Me"
    assert ("x-name", "Me") in request.header_pairs
    assert {name.lower() for name in request.headers} == request.headers.keys()
    assert {name for name, _ in request.header_pairs} == request.headers.keys()


def test_who_connected_is_the_client_where_no_proxy_is_trusted() -> None:
    config, headers = wsmux.Config(), {"X-Forwarded-For": "192.0.2.7"}
    request, port = asked_of_server(config, "/", headers=headers)
    assert request.remote_address == f"127.0.0.1:{port}"
    assert request.client_address == "127.0.0.1"


def test_a_trusted_proxy_names_the_client() -> None:
    config, headers = wsmux.Config(trusted_proxies=["127.0.0.1"]), {"X-Forwarded-For": "192.0.2.7"}
    request, port = asked_of_server(config, "/", headers=headers)
    assert request.remote_address == f"127.0.0.1:{port}"
    assert request.client_address == "192.0.2.7"


def test_a_wsgi_server_that_mounts_the_application_somewhere_has_taken_the_start_of_the_path() -> (
    None
):
    asked = request_of({"SCRIPT_NAME": "/mounted", "PATH_INFO": "/a", "QUERY_STRING": "b"})
    assert (asked.path, asked.query) == ("/mounted/a", "b")


def test_repeated_headers_stay_apart_and_are_joined_in_the_mapping() -> None:
    extra = b"X-A: 1\r\nCookie: a=1\r\nx-a: 2, 3\r\nCookie: b=2\r\nContent-Type: text/plain\r\n\r\n"
    asked = asked_with(extra)
    assert asked.headers["x-a"] == "1, 2, 3"
    assert asked.headers["cookie"] == "a=1; b=2"
    assert asked.headers["content-type"] == "text/plain"
    assert asked.header_pairs[0] == ("host", HOST)
    assert asked.header_pairs[-5:] == (
        ("x-a", "1"),
        ("cookie", "a=1"),
        ("x-a", "2, 3"),
        ("cookie", "b=2"),
        ("content-type", "text/plain"),
    )


def test_a_name_with_an_underscore_passes_for_no_other() -> None:
    extra = b"X-Forwarded-User: me\r\nX_Forwarded_User: root\r\nX_Other: root\r\n\r\n"
    asked = asked_with(extra)
    assert asked.headers["x-forwarded-user"] == "me"
    assert not [name for name in asked.headers if "_" in name or name == "x-other"]
    assert not [value for _, value in asked.header_pairs if value == "root"]


def test_headers_of_a_wsgi_server_are_pairs_too() -> None:
    asked = request_of({"HTTP_HOST": "a", "HTTP_X_B": "1,2", "PATH_INFO": "/"})
    assert asked.headers == {"host": "a", "x-b": "1,2"}
    assert asked.header_pairs == (("host", "a"), ("x-b", "1,2"))


def test_a_connection_tells_the_headers_of_its_request_apart() -> None:
    asked: list[wsmux.Request | None] = []
    done = threading.Event()

    def handle(connection: wsmux.Connection) -> None:
        asked.append(connection.request)
        done.set()

    extra = b"X-User: me\r\nX_User: root\r\nX-User: you\r\n\r\n"
    with wsmux.serve(handle) as server, dial(server) as sock:
        sock.sendall(TAKEN["plain"].removesuffix(b"\r\n") + extra)
        assert done.wait(WAIT)
    request = asked[0]
    assert request is not None
    assert request.headers["x-user"] == "me, you"
    assert request.header_pairs[-2:] == (("x-user", "me"), ("x-user", "you"))
