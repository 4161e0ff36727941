"""What the audit log tells of who came, who was refused, and who left."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

import wsmux
from wsmux.endpoints.audit import Visit, refused
from wsmux.handshake.request import Request


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Have the lines logged."""
    with caplog.at_level(logging.INFO, "wsmux.audit"):
        yield caplog


def asked(path: str = "/chat", user: str | None = None, peer: str = "192.0.2.7") -> Request:
    secret = {"authorization": "Bearer secret"}
    return Request(path, "token=secret", secret, "198.51.100.1:5000", (), peer, user)


def test_a_refusal_tells_who_and_why(audit: pytest.LogCaptureFixture) -> None:
    refused(asked(user="ann"), "", 403, "not allowed")
    assert audit.messages == [
        'refused path=/chat peer=192.0.2.7 user=ann status=403 why="not allowed"'
    ]


def test_without_a_request_there_is_the_address(audit: pytest.LogCaptureFixture) -> None:
    refused(None, "192.0.2.9", None, "full")
    assert audit.messages == ["refused path=- peer=192.0.2.9 user=- status=- why=full"]


def test_of_many_refusals_a_line_a_second_is_logged(audit: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        refused(asked(path=f"/{number}"), "", 403, "not allowed")
    assert [line.split()[1] for line in audit.messages] == ["path=/0"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a peer=192.0.2.1", '"a peer=192.0.2.1"'),
        ("a\nrefused", '"a\\nrefused"'),
        ('a" b', '"a\\" b"'),
        ("a\\n", '"a\\\\n"'),
        ("-", '"-"'),
        ("zoë", '"zoë"'),
        ("\U000e0001" * 90, '"' + "\\U000e0001" * 40 + '... (50 more characters)"'),
        ('\n"\\' * 99, '"' + r"\n\"\\" * 40 + '... (295 more characters)"'),
        ("u" * 1000, '"' + "u" * 200 + '... (800 more characters)"'),
    ],
)
def test_a_name_cannot_look_like_more_than_a_name(
    name: str, shown: str, audit: pytest.LogCaptureFixture
) -> None:
    refused(asked(user=name), "", 403, "no")
    assert audit.messages == [f"refused path=/chat peer=192.0.2.7 user={shown} status=403 why=no"]


def test_each_connection_is_told_twice(audit: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        client, server = wsmux.pair()
        with client, server:
            server.request = asked(user="ann")
            visit = Visit(server, "198.51.100.1")
            with client.open_stream() as stream:
                stream.write(bytes(1000))
                with server.accept_stream() as accepted:
                    stream.close_write()
                    assert len(accepted.read()) == 1000
            client.close()
            server.close()
            visit.ended()
    assert len(audit.messages) == 6, "no line of these is left out"
    came, left = audit.messages[-2:]
    who = f"path=/chat peer=192.0.2.7 user=ann connection={server.name}"
    assert came == f"accepted {who} wire=wsmux"
    found = re.fullmatch(
        rf"closed {re.escape(who)} code=1000 seconds=\d+\.\d{{3}} streams=1 "
        r"bytes_in=(\d+) bytes_out=\d+",
        left,
    )
    assert found
    assert int(found[1]) > 1000
    assert "secret" not in audit.text


def test_who_wants_no_lines_has_none(caplog: pytest.LogCaptureFixture) -> None:
    client, server = wsmux.pair()
    # That of the others does not turn it on: a peer that comes and goes would fill their log.
    with client, server, caplog.at_level(logging.INFO, "wsmux"), caplog.at_level(logging.INFO):
        Visit(server, "").ended()
        refused(None, "", 403, "no")
    assert not caplog.messages
