"""A refused client is told why, in words that its server lets an application send."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from flask import Flask

from wsmux.exceptions import HandshakeError
from wsmux.flask.responses import Ended, refusal


def refused(environ: dict[str, Any], status: int | None = 429) -> Any:
    app = Flask("app")
    with app.test_request_context("/mux", environ_base=environ):
        return refusal(HandshakeError("too many of this address", status))


def test_the_answer_is_a_sentence_with_the_status() -> None:
    response = refused({})
    assert response.status_code == 429
    assert response.get_data() == b"too many of this address\n"


def test_an_error_without_a_status_is_a_bad_request() -> None:
    assert refused({}, None).status_code == 400


@pytest.mark.parametrize(
    "environ",
    [{"werkzeug.socket": object()}, {"SERVER_SOFTWARE": "gevent/24.2 Python/3.12"}],
    ids=["werkzeug", "gevent"],
)
def test_where_an_application_may_the_connection_is_closed(environ: dict[str, Any]) -> None:
    assert refused(environ).headers["Connection"] == "close"


def test_other_servers_are_not_given_a_header_that_they_forbid() -> None:
    # PEP 3333: an application must not send hop-by-hop headers.
    assert "Connection" not in refused({"SERVER_SOFTWARE": "waitress"}).headers


def test_gunicorn_finds_the_end_of_a_connection_that_was_refused() -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        peer.sendall(b"what would be taken for the next request")
        response = refused({"gunicorn.socket": ours})
        ours.sendall(b"answer")  # as gunicorn does before it closes the response
        response.close()
        assert ours.recv(4096) == b""
        assert peer.recv(6) == b"answer"
        assert peer.recv(1) == b""


def test_a_socket_that_is_gone_does_not_matter() -> None:
    ours, peer = socket.socketpair()
    response = refused({"gunicorn.socket": ours})
    ours.close()
    peer.close()
    response.close()


def test_who_was_refused_and_why_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wsmux"):
        refused({"REMOTE_ADDR": "192.0.2.7"})
    assert "/mux refused 192.0.2.7: too many of this address" in caplog.text


@pytest.mark.parametrize(
    ("mode", "error"), [("gunicorn", StopIteration), ("werkzeug", ConnectionError)]
)
def test_a_request_whose_socket_is_gone_ends_as_its_server_wants(
    mode: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Ended(mode)({}, print)


def test_elsewhere_it_ends_without_a_byte() -> None:
    assert list(Ended("gevent")({}, print)) == []
