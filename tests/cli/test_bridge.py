"""``wsmux bridge`` between ``wsmux serve`` and ``wsmux cat``, each in another wire."""

from __future__ import annotations

import json
import random
import socket
from urllib.parse import urlsplit

import pytest

import wsmux
from wsmux.cli import bridge
from wsmux.cli.main import main, parser
from wsmux.testing import FaultProxy

from ..helpers.certificates import Certificates
from ..helpers.commands import command, run, run_here, running, served
from ..helpers.ports import free_port
from ..helpers.timeouts import WAIT

DATA = random.Random(7).randbytes(1_234_567)


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


@pytest.mark.parametrize(
    ("carrier", "protocol"),
    [
        *(((), protocol) for protocol in ("wsmux", "yamux", "bymux")),
        (("--tcp",), "yamux"),
        *(
            pytest.param(("--tcp",), protocol, marks=pytest.mark.wide)
            for protocol in ("wsmux", "bymux")
        ),
    ],
)
def test_cat_brings_back_what_an_echo_server_got(carrier: tuple[str, ...], protocol: str) -> None:
    with served("--echo", "--protocol", protocol, *carrier) as url:
        done = run("cat", url, "--protocol", protocol, data=DATA)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == DATA


def test_a_bridge_joins_wires_and_carriers() -> None:
    offers = ("--protocol", "wsmux", "--protocol", "bymux")
    with (
        served("--echo", "--tcp", "--protocol", "yamux") as url,
        running("bridge", *offers, "--to", url, "--to-protocol", "yamux") as bridged,
    ):
        assert url.startswith("tcp://")
        assert bridged.startswith("ws://")
        for protocol in ("wsmux", "bymux"):
            done = run_here("cat", bridged, "--protocol", protocol, data=DATA)
            assert (done.returncode, done.stderr) == (0, b"")
            assert done.stdout == DATA


def test_a_bridge_lets_the_server_choose_the_wire() -> None:
    offers = ("--to-protocol", "bymux", "--to-protocol", "yamux")
    listen = ("--listen", "tcp://127.0.0.1:0", "--protocol", "wsmux")
    with (
        served("--echo", "--protocol", "wsmux", "--protocol", "yamux") as url,
        running("bridge", *listen, "--to", url, *offers) as bridged,
        wsmux.connect(bridged) as connection,
        connection.open_stream() as stream,
    ):
        stream.write(b"hello")
        stream.close_write()
        assert stream.read() == b"hello"


def test_a_bridge_and_cat_offer_no_subprotocol_when_told() -> None:
    with (
        served("--echo", "--protocol", "yamux") as url,
        running(
            *("bridge", "--protocol", "yamux", "--to", url),
            *("--to-protocol", "yamux", "--to-subprotocol", "none"),
        ) as bridged,
    ):
        cat = ("cat", bridged, "--protocol", "yamux", "--subprotocol")
        done = run_here(*cat, "none", data=DATA)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == DATA
        assert run_here(*cat, "other", data=DATA).returncode == 1


def test_a_bridge_with_tls_on_both_sides(certificates: Certificates) -> None:
    tls = ("--certfile", str(certificates.chain), "--keyfile", str(certificates.key))
    trust = ("--cafile", str(certificates.authority))
    listen = ("--listen", "wss://127.0.0.1:0", *tls, "--json")
    with (
        served("--echo", "--tcp", *tls) as url,
        running("bridge", *listen, "--to", url, *trust) as told,
    ):
        bridged = json.loads(told)["url"]
        assert bridged.startswith("wss://")
        done = run_here("cat", bridged, *trust, data=DATA)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == DATA


def test_streams_go_on_behind_cuts_of_both_sides() -> None:
    with (
        served("--echo") as url,
        FaultProxy(port_of(url)) as behind,
        running("bridge", "--resume", "--to", behind.url) as bridged,
        FaultProxy(port_of(bridged)) as before,
        wsmux.connect(before.url, resume=True) as connection,
    ):
        assert connection.resumable
        with connection.open_stream() as stream:
            stream.timeout = WAIT
            for number, proxy in enumerate((before, behind, before, behind)):
                stream.write(b"%d" % number)
                assert stream.read(1) == b"%d" % number
                proxy.reset()
            stream.close_write()
            assert stream.read() == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listen", "tcp://127.0.0.1:0", "--certfile", "a", "--to", "ws://h:1"),
        ("--to", "tcp://h:1", "--insecure"),
    ],
)
def test_tls_alone_is_not_resumable(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main(["bridge", "--resume", *arguments]) == 2
    assert "--resume with TLS needs wss://" in capsys.readouterr().err


def test_a_server_that_cannot_be_reached_is_told_to_the_client() -> None:
    port = free_port()
    with (
        running("bridge", "--to", f"ws://127.0.0.1:{port}/") as bridged,
        wsmux.connect(bridged) as connection,
    ):
        assert connection.wait_closed(20)
        error = connection.error
    assert isinstance(error, wsmux.ConnectionClosedError)
    assert (error.code, error.side) == (1014, "remote")


def test_a_server_that_cannot_be_reached_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    client, server = wsmux.pair()
    with client, server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{free.getsockname()[1]}/"
        args = parser().parse_args(["bridge", "--to", url])
        bridge._bridge(args, {}, server)
    told = f"wsmux bridge: cannot connect to {url}: Connection refused; is the server running"
    assert capsys.readouterr().err.startswith(told)


def test_the_command_of_the_example_in_the_help_parses() -> None:
    example = run_here("bridge", "--help").stdout.decode().partition("Example: ")[2].split()
    assert example[:2] == ["wsmux", "bridge"]
    assert command(*example[1:])[-1] == "yamux"
