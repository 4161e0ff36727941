"""``wsmux peer publish`` and ``wsmux peer subscribe``: what they print, and how they fail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsmux.bus import Client, FileTwins, RelayServer, serve_relay
from wsmux.bus.twins.records import twin_record

from ..helpers.bus.people import DOMAIN, person, table_of
from ..helpers.commands import run, run_here, subscribed

ALICE, BOB = person(1), person(3)

SECRET = f"0x{1:064x}"
POSITION = r"\d+-\d+"


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    path = tmp_path / "twins.json"
    records = [twin_record(twin) for twin in table_of(ALICE, BOB).twins.values()]
    path.write_text(json.dumps(records))
    return path


@pytest.fixture
def relay(twins: Path) -> Iterator[RelayServer]:
    with serve_relay([DOMAIN], FileTwins(twins), topics={"orders": [3]}) as server:
        yield server


@pytest.fixture
def options(twins: Path, relay: RelayServer) -> tuple[str, ...]:
    return "--twins", str(twins), "-k", "ed25519", "--relay", relay.url, "--seed", SECRET


def test_lines_of_stdin_are_messages(options: tuple[str, ...]) -> None:
    with subscribed("peer", "subscribe", "news", *options) as printed:
        done = run("peer", "publish", "news", *options, data="one\ntwö\n".encode())
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(rf"{POSITION}\n{POSITION}\n", done.stdout.decode())
        assert [printed.readline() for _ in range(2)] == ["one\n", "twö\n"]


def test_a_message_of_the_command_line_is_printed_as_json_on_demand(
    options: tuple[str, ...],
) -> None:
    done = run_here("peer", "publish", "news", "hello", "--json", *options)
    position = json.loads(done.stdout)["position"]
    with subscribed("peer", "subscribe", "news", *options, "--from", "oldest", "--json") as printed:
        told = json.loads(printed.readline())
    assert told.pop("time") > 0
    assert re.fullmatch("1:[0-9a-f]+", told.pop("source"))
    assert told == {"topic": "news", "position": position, "payload": "hello"}


def test_what_is_no_printable_text_stays_on_a_line(
    options: tuple[str, ...], twins: Path, relay: RelayServer
) -> None:
    with Client(BOB.identity, relay.url, str(twins)) as client:
        first = client.publish("news", "skipped")
        client.publish("news", "a\nb\x1b")
        client.publish("news", {"a": 1})
        client.publish_raw("news", b"\0", "image/png")
    with subscribed("peer", "subscribe", "news", *options, "--from", str(first)) as printed:
        assert printed.readline() == '"a\\nb\\u001b"\n'
        assert printed.readline() == '{"a": 1}\n'
        assert printed.readline() == '{"schema": "image/png", "data": "AA=="}\n'


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("publish",), 2, "name the topic: wsmux peer publish TOPIC"),
        (("subscribe",), 2, "name the topic"),
        (("publish", "a b", "x"), 2, "expected the name of a topic"),
        (("subscribe", "news", "--from", "never"), 2, "'new', 'oldest' or a position"),
        (("subscribe", "news", "x"), 2, "a message is for 'wsmux peer publish'"),
        (("echo", "news"), 2, "a topic is for 'wsmux peer publish' or 'wsmux peer subscribe'"),
        (("publish", "orders", "x"), 1, "twin 1 may not publish to 'orders'"),
        (("publish", "news", "x", "--timeout", "0"), 2, "must be above 0"),
    ],
)
def test_failures_say_why(
    options: tuple[str, ...], arguments: tuple[str, ...], status: int, text: str
) -> None:
    done = run_here("peer", *arguments, *options)
    assert (done.returncode, done.stdout) == (status, b"")
    assert text in done.stderr.decode()


def test_a_relay_that_is_not_there_is_told(options: tuple[str, ...], relay: RelayServer) -> None:
    relay.shutdown()
    for action in (("publish", "news", "x"), ("subscribe", "news")):
        done = run_here("peer", *action, *options, "--timeout", "0.2")
        assert done.returncode == 1
        assert b"no relay is connected" in done.stderr
