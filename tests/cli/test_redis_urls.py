"""The password of a Redis comes from the environment; no message shows it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from wsmux.cli.redis_urls import PASSWORD, with_password

from ..helpers.commands import run_here
from ..helpers.redis_server import RedisServer

SECRET = "pass/w#rd?@%:é"


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://host", "redis://:{}@host"),
        ("redis://host:1/2?x=y", "redis://:{}@host:1/2?x=y"),
        ("rediss://user@host:1", "rediss://user:{}@host:1"),
        ("redis://[::1]:1/0", "redis://:{}@[::1]:1/0"),
        ("unix:///run/redis.sock?db=1", "unix://:{}@/run/redis.sock?db=1"),
        ("//host", "//host"),  # which is refused later
        ("redis://[host", "redis://[host"),
    ],
)
def test_the_password_is_added(monkeypatch: pytest.MonkeyPatch, url: str, whole: str) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    assert with_password(url) == url
    monkeypatch.setenv(PASSWORD, SECRET)
    assert with_password(url) == whole.format(quote(SECRET, safe=""))


@pytest.mark.parametrize(
    "url", ["redis://:mine@host", "redis://user:mine@host:1", "unix:///run/redis?password=mine"]
)
def test_one_on_the_command_line_counts_and_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    assert with_password(url) == url
    told = capsys.readouterr().err
    assert "everybody on this machine sees the password" in told
    assert PASSWORD in told
    assert "mine" not in told


@pytest.fixture
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Redis that wants the password."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        with server.client() as client:
            client.config_set("requirepass", SECRET)
        yield server


def test_a_command_reaches_a_redis_that_wants_a_password(
    locked: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, SECRET)
    for command in (("cluster", "who", "--redis"), ("top", "--once", "--json", "--cluster")):
        done = run_here(*command, locked.url)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("given", ["", "other"])
def test_a_wrong_password_is_told_without_it(
    locked: RedisServer, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(PASSWORD, given)
    done = run_here("cluster", "who", "--redis", locked.url)
    assert done.returncode == 1
    assert b"Redis failed: " in done.stderr
    # Redis 7 ends a connection at its first long command, and what it says before may be lost.
    told = (b"Authentication required", b"invalid", b"unauthenticated", b"reset by peer")
    assert any(each in done.stderr for each in told)
    assert b"other" not in done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hidden/word@host",
        "redis://user:hidden?word@host",
        "redis://user:hidden#word@host",
        "redis://user:hidden@host:port",
        "redis://user:hidden@host:99999",
        "redi://user:hidden@host",
        "redis://user:hidden@[host",
        "user:hidden@host",
    ],
)
@pytest.mark.parametrize("command", ["cluster who --redis", "top --once --cluster"])
def test_a_wrong_url_is_told_without_its_password(command: str, url: str) -> None:
    done = run_here(*command.split(), url)
    assert done.returncode == 2
    assert b"expected the URL of a Redis" in done.stderr
    assert b"hidden" not in done.stderr
