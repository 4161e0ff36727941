"""Have the doctor name what is broken: ten set-ups, each by its fact and its fix."""

from __future__ import annotations

import ssl

import pytest

import wsmux
from wsmux.doctor import Status, Step, line

from ..helpers.broken_setups import (
    SHORT,
    answering,
    bad,
    black_hole,
    echoing,
    examined,
    idle_cutting,
    local,
    nagling,
    slow_link,
    small_messages,
    upgrading,
)
from ..helpers.certificates import Certificates
from ..helpers.proxies import http_proxy, playing
from ..helpers.timeouts import WAIT
from ..helpers.wires import NAMES


def test_nothing_is_wrong_with_what_is_well() -> None:
    with echoing() as server:
        report = examined(server.url, echo=True)
    # A busy machine may be slow, which is for the load step to say.
    assert {step.name for step in bad(report)} <= {"load", "nagle", "rtt"}
    assert not report.failed
    assert [step.name for step in report.steps] == [
        "dns",
        "proxy",
        "tcp",
        "tls",
        "upgrade",
        "subprotocol",
        "wire",
        "rtt",
        "nagle",
        "message limit",
        "idle cut",
        "load",
    ]


def test_a_proxy_that_wants_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with echoing() as server, playing(http_proxy([], "Basic dXNlcjpwYXNz")) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        without = examined(server.url)
        monkeypatch.setenv("http_proxy", f"http://user:wrong@127.0.0.1:{port}")
        wrong = examined(server.url)
        monkeypatch.setenv("http_proxy", f"http://user:pass@127.0.0.1:{port}")
        right = examined(server.url)
    for report, told in ((without, "wants credentials"), (wrong, "does not take")):
        [step] = bad(report)
        assert (step.name, step.status) == ("proxy", Status.FAILED)
        assert told in step.fact
        assert "USER:PASSWORD@HOST" in step.fix
        assert "pass" not in step.fact  # no secret is told
        assert report.steps[-1] == Step("load", Status.SKIPPED, "not reached: proxy failed")
    assert not right.failed


def test_a_certificate_that_is_not_trusted(certificates: Certificates) -> None:
    with echoing(ssl_context=certificates.server) as server:
        report = examined(server.url, ssl_context=ssl.create_default_context())
        right = examined(server.url, ssl_context=certificates.client)
    [step] = bad(report)
    assert (step.name, step.status) == ("tls", Status.FAILED)
    assert "not trusted" in step.fact
    assert "--cafile" in step.fix
    assert not right.failed


def test_no_upgrade() -> None:
    with playing(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")) as port:
        [step] = bad(examined(local(port)))
    assert (step.name, step.status) == ("upgrade", Status.FAILED)
    assert "200" in step.fact
    assert "Upgrade" in step.fix


def test_a_wrong_path() -> None:
    with playing(answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) as port:
        [step] = bad(examined(local(port, path="/nowhere")))
    assert (step.name, step.status) == ("upgrade", Status.FAILED)
    assert "404" in step.fact
    assert step.fix.startswith("check the path")


@pytest.mark.parametrize("served", ["yamux", "js-ws"])
def test_a_wrong_subprotocol(served: str) -> None:
    with echoing(protocols=[served]) as server:
        [step] = bad(examined(server.url))
    assert (step.name, step.status) == ("subprotocol", Status.FAILED)
    assert served in step.fact
    assert f"--protocol {served}" in step.fix


def test_a_cut_of_idle_connections() -> None:
    with echoing() as server, playing(idle_cutting(server.port, 0.6)) as port:
        [step] = [step for step in bad(examined(local(port), idle=5.0)) if step.name == "idle cut"]
    assert step.status is Status.FAILED
    assert "cut after" in step.fact
    assert "ping_interval=" in step.fix


def test_a_small_message_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LOAD_TIME", 0.1)
    with echoing() as server, playing(small_messages(server.port, 20_000)) as port:
        report = examined(local(port), echo=True)
    step = next(step for step in report.steps if step.name == "message limit")
    assert step.status is Status.FAILED
    assert "32768 bytes do not pass, of 16384 they do" in step.fact
    assert "1009" in step.fact
    assert "max_frame_size=16368" in step.fix


def test_a_gateway_that_takes_frames_of_32_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LOAD_TIME", 0.1)
    with echoing() as server, playing(small_messages(server.port, 32 * 1024)) as port:
        report = examined(local(port), echo=True)
    step = next(step for step in report.steps if step.name == "message limit")
    assert step.status is Status.FAILED
    assert "65536 bytes do not pass, of 32768 they do" in step.fact
    assert "Config(max_frame_size=32752) at both ends" in step.fix
    assert "Amazon API Gateway" in step.fix


@pytest.mark.parametrize("protocol", NAMES)
def test_what_the_doctor_says_of_such_a_gateway_helps(protocol: str) -> None:
    config = wsmux.Config(max_frame_size=32752)
    with (
        echoing(protocols=[protocol], config=config) as server,
        playing(small_messages(server.port, 32 * 1024)) as port,
        wsmux.connect(local(port), protocol=protocol, config=config) as connection,
        connection.open_stream() as stream,
    ):
        stream.timeout = WAIT
        stream.write(bytes(200_000))
        stream.close_write()
        assert stream.read() == bytes(200_000)


def test_nagles_algorithm_where_the_answers_come_from() -> None:
    with playing(nagling) as port:
        report = examined(local(port))
    step = next(step for step in report.steps if step.name == "nagle")
    assert step.status is Status.WARNING
    assert "TCP_NODELAY" in step.fix


@pytest.mark.long
def test_a_slow_link() -> None:
    with echoing() as server, playing(slow_link(server.port, 500_000)) as port:
        report = examined(local(port), echo=True, idle=0.05)
    step = next(step for step in report.steps if step.name == "load")
    assert step.status in (Status.WARNING, Status.FAILED)
    assert "slow link" in step.fact or "under load" in step.fact


def test_a_black_hole_before_the_upgrade() -> None:
    with playing(black_hole) as port:
        [step] = bad(examined(local(port), timeout=SHORT))
    assert (step.name, step.status) == ("upgrade", Status.FAILED)
    assert "black hole" in step.fact


def test_a_black_hole_behind_the_upgrade() -> None:
    with playing(upgrading(lambda peer: black_hole(peer.sock))) as port:
        [step] = bad(examined(local(port), timeout=SHORT))
    assert (step.name, step.status) == ("wire", Status.FAILED)
    assert "black hole" in step.fact
