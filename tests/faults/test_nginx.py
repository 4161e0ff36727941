"""Go through a real nginx, with the configuration that the documentation shows.

It stands on a port that is not the default one, so that ``Host`` and ``Origin`` have to name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

import wsmux
from wsmux.doctor import Plan, examine
from wsmux.flask import Mux

from ..helpers.broken_setups import echo, echoing
from ..helpers.certificates import Certificates
from ..helpers.nginx import PAGE, documented, nginx
from ..helpers.raw_peer import WAIT
from ..helpers.werkzeug_server import serving

DIRECTIVES = (
    "proxy_http_version 1.1;",
    "proxy_set_header Upgrade $http_upgrade;",
    'proxy_set_header Connection "upgrade";',
)

Connect = Callable[..., wsmux.Connection]


def flask_app() -> Flask:
    """Return an application that knows the proxy as the documentation has it."""
    app = Flask("app")
    assert "`app.wsgi_app = ProxyFix(app.wsgi_app, x_proto=1)`" in PAGE.read_text()
    app.wsgi_app = ProxyFix(app.wsgi_app, x_proto=1)  # type: ignore[method-assign]
    Mux(app).stream_route("/")(echo)
    return app


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Name the scheme by which nginx is reached."""
    name: str = request.param
    return name


@pytest.fixture
def authority(scheme: str, certificates: Certificates) -> Certificates | None:
    """Return the certificates, where there is TLS."""
    return certificates if scheme == "https" else None


@contextmanager
def behind_nginx(
    folder: Path, behind: int, authority: Certificates | None
) -> Iterator[tuple[str, Connect]]:
    """Give the public host and port, and how to connect there."""
    with nginx(folder, documented(), behind, authority) as port:
        place = f"localhost:{port}"
        context = None if authority is None else authority.client

        def connect(**options: str) -> wsmux.Connection:
            url = f"{'ws' if context is None else 'wss'}://{place}/"
            return wsmux.connect(url, ssl_context=context, timeout=WAIT, **options)  # type: ignore[arg-type]

        yield place, connect


@pytest.fixture
def public(tmp_path: Path, authority: Certificates | None) -> Iterator[tuple[str, Connect]]:
    """Return the same, with the Flask application of the documentation behind it."""
    with (
        serving(flask_app()) as port,
        behind_nginx(tmp_path, port, authority) as place,
    ):
        yield place


def check_echo(connection: wsmux.Connection) -> None:
    with connection, connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"hello")
        stream.close_write()
        assert stream.read() == b"hello"


def test_a_script_gets_through(public: tuple[str, Connect]) -> None:
    check_echo(public[1]())


def test_a_page_of_the_public_address_gets_through(
    public: tuple[str, Connect], scheme: str
) -> None:
    place, connect = public
    check_echo(connect(origin=f"{scheme}://{place}"))


@pytest.mark.parametrize(
    "foreign",
    [
        "https://evil.example",
        "http://evil.example:{port}",
        "{scheme}://localhost",
        "{scheme}://localhost:1",
        "{other}://localhost:{port}",
    ],
)
def test_a_foreign_page_gets_403(public: tuple[str, Connect], scheme: str, foreign: str) -> None:
    place, connect = public
    other = "http" if scheme == "https" else "https"
    origin = foreign.format(scheme=scheme, other=other, port=place.partition(":")[2])
    with pytest.raises(wsmux.HandshakeError, match="may not connect here") as refused:
        connect(origin=origin)
    assert refused.value.status == 403


def test_a_server_of_its_own_takes_scripts_and_the_pages_that_it_lists(
    tmp_path: Path, scheme: str, authority: Certificates | None
) -> None:
    listed = f"{scheme}://public.example:8443"
    with (
        echoing(origins=[listed]) as server,
        behind_nginx(tmp_path, server.port, authority) as (_, connect),
    ):
        check_echo(connect())
        check_echo(connect(origin=listed))
        with pytest.raises(wsmux.HandshakeError) as refused:
            connect(origin="https://evil.example")
    assert refused.value.status == 403


def test_a_script_gets_through_where_the_proxy_drops_the_port(
    tmp_path: Path, scheme: str, authority: Certificates | None
) -> None:
    dropping = documented().replace("$http_host", "$host")
    with (
        serving(flask_app()) as behind,
        nginx(tmp_path, dropping, behind, authority) as port,
    ):
        url = f"{scheme.replace('http', 'ws')}://localhost:{port}/"
        context = None if authority is None else authority.client
        check_echo(wsmux.connect(url, ssl_context=context, timeout=WAIT))
        with pytest.raises(wsmux.HandshakeError) as refused:
            wsmux.connect(
                url, ssl_context=context, timeout=WAIT, origin=f"{scheme}://localhost:{port}"
            )
    assert refused.value.status == 403


def test_the_doctor_finds_nothing_wrong(tmp_path: Path) -> None:
    with (
        serving(flask_app()) as behind,
        nginx(tmp_path, documented(), behind) as port,
    ):
        report = examine(Plan(url=f"ws://127.0.0.1:{port}/", idle=0.05, timeout=WAIT))
    assert not report.failed


def test_the_doctor_finds_that_nginx_does_not_pass_the_upgrade_on(tmp_path: Path) -> None:
    lines = documented().splitlines()
    told = "\n".join(line for line in lines if not re.search("(?i)upgrade|http_version", line))
    assert len(told.splitlines()) == len(lines) - 3
    with (
        serving(flask_app()) as behind,
        nginx(tmp_path, told, behind) as port,
    ):
        report = examine(Plan(url=f"ws://127.0.0.1:{port}/", idle=0.05, timeout=WAIT))
    [step] = [step for step in report.steps if step.fix]
    assert step.name == "upgrade"
    assert "<" not in step.fact
    for directive in DIRECTIVES:
        assert directive in step.fix


@pytest.mark.parametrize("own", [False, True], ids=["flask", "serve"])
def test_the_doctor_finds_that_nginx_speaks_http_1_0(tmp_path: Path, own: bool) -> None:
    told = documented().replace("proxy_http_version 1.1;", "proxy_http_version 1.0;")
    with ExitStack() as stack:
        behind = (
            stack.enter_context(echoing()).port
            if own
            else stack.enter_context(serving(flask_app()))
        )
        port = stack.enter_context(nginx(tmp_path, told, behind))
        report = examine(Plan(url=f"ws://127.0.0.1:{port}/", idle=0.05, timeout=WAIT))
    [step] = [step for step in report.steps if step.fix]
    assert step.name == "upgrade"
    assert "arrives as HTTP/1.0" in step.fact
    assert "proxy_http_version 1.1;" in step.fix
    assert "proxy_set_header" not in step.fix  # those are there


def test_the_page_and_the_doctor_name_the_same_directives() -> None:
    lines = [line.strip() for line in documented().splitlines()]
    assert set(DIRECTIVES) < set(lines)
