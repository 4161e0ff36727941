"""``wsmux relay``: its arguments, and one that serves. How it routes is told in ``tests/bus``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest

from wsmux.bus.session.link import dial
from wsmux.bus.twins import sources
from wsmux.bus.twins.records import twin_record
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.tokens import make_token
from wsmux.cli.addresses import host_and_port
from wsmux.cli.relay import (
    CACHE_LIFE,
    add_arguments,
    cache_life,
    connections,
    limit,
    owned_name,
    owners,
    publishers,
    retention,
    route,
    topic,
)
from wsmux.cli.terminal import CommandError
from wsmux.runtime.deadline import Deadline

from ..helpers.bus.links import Running
from ..helpers.bus.relays import Table, ask, identity
from ..helpers.commands import run, run_here, running
from ..helpers.raw_peer import WAIT
from ..helpers.tables import each_case


@pytest.fixture
def twins(tmp_path: Path) -> str:
    path = tmp_path / "twins.json"
    path.write_text(json.dumps([twin_record(twin) for twin in Table().twins.values()]))
    return str(path)


# Arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::]:0", ("::", 0)),
        ("relay.test:1", ("relay.test", 1)),
    ],
)
def test_where_to_listen(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text) == expected


@each_case
@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "host", "host:", "host:x", "host:70000", "host:1/x", "a@b:1", "[::]"],
)
def test_where_nobody_can_listen(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="HOST:PORT"):
        host_and_port(text)


@pytest.mark.parametrize("texts", [["10", "1000"], ["10,1000"], ["10,", "1000"]])
def test_limits_are_written_in_several_ways(texts: list[str]) -> None:
    assert limit(texts) == (10, 1000)


@pytest.mark.parametrize(
    "texts",
    [["10"], ["0", "1"], ["1", "0"], ["1", "2", "3"], ["x", "1"], ["-1,5"], ["1.5", "2"], [","]],
)
def test_other_limits_are_refused(texts: list[str]) -> None:
    with pytest.raises(CommandError, match="a count and a size above 0"):
        limit(texts)


def test_routes_name_a_domain_and_a_url() -> None:
    assert route("a.test=http://127.0.0.1:1/") == ("a.test", "http://127.0.0.1:1/")


@pytest.mark.parametrize("text", ["", "a.test", "=http://x/", "a.test=", "a.test=ws://x/"])
def test_other_routes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="DOMAIN=http"):
        route(text)


def test_names_have_an_owner() -> None:
    assert owned_name("billing=12") == ("billing", 12)


@pytest.mark.parametrize("text", ["", "billing", "=12", "billing=", "billing=x", "billing=0"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=TWIN"):
        owned_name(text)


def test_the_options_of_the_known_relay_work() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = "-l [::]:1 -m a -m b -r redis://x -s ws://x -p 5 --limit 10 1000 -w 2 -u 3"
    text += " --catchup-threshold 600"
    args = parser.parse_args(text.split())
    assert (args.listen, args.domain, args.redis) == (("::", 1), ["a", "b"], "redis://x")
    assert (args.substrate, args.ranker_period, args.limit) == (["ws://x"], 5, ["10", "1000"])
    assert (args.workers, args.user_per_worker, args.catchup_threshold) == (2, 3, 600)
    assert parser.parse_args(["--ranker_period", "5"]).ranker_period == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("--max-connections 7", 7),
        ("-w 2 -u 3", 6),
        ("--workers 2", 2000),
        ("--user-per-worker 3", 1500),
    ],
)
def test_users_are_the_product_of_workers_and_theirs(text: str, expected: int | None) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert connections(parser.parse_args(text.split())) == expected


@pytest.mark.parametrize(
    ("threshold", "life"), [(None, 300.0), (600, 300.0), (50, 300.0), (10, 60.0), (0, 0.0)]
)
def test_a_cached_twin_is_no_more_blocks_behind(threshold: int | None, life: float) -> None:
    assert cache_life(threshold) == life
    assert CACHE_LIFE == sources.CACHE_LIFE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--twins", "TWINS", "-w", "0"], b"at least 1"),
        (["--twins", "TWINS", "-u", "0"], b"at least 1"),
        (["--twins", "TWINS", "--catchup-threshold", "-1"], b"catchup-threshold"),
        (["--twins", "TWINS", "-w", "5", "--max-connections", "9"], b"give it or them"),
        ([], b"give --twins or --substrate"),
        (["--twins", "TWINS", "--limit", "5"], b"a count and a size above 0"),
        (["--twins", "TWINS", "--domain", "a b"], b"expected the domain of a relay"),
        (["--twins", "ftp://x"], b"expected a file, http"),
        (["--twins", "TWINS", "--redis", "x"], b"redis"),
        (["--twins", "TWINS", "--route", "a_b=http://x/"], b"expected the domain of a relay"),
        (["--twins", "TWINS", "--topic", "a b=1"], b"expected the name of a topic"),
        (["--twins", "TWINS", "--topic-retention", "0", "0", "0"], b"expected a retention of"),
        (["--twins", "TWINS", "--topic-retention", "1", "x", "1"], b"takes messages, bytes and"),
        (["--twins", "TWINS", "--name", "5=12"], b"expected a name"),
        (["--twins", "TWINS", "--name", "a=1", "--name", "a=2"], b"for twin 1 and for 2"),
        (["--twins", "TWINS", "--keyfile", "x"], b"--keyfile needs --certfile"),
    ],
)
def test_wrong_usage_is_told(twins: str, arguments: list[str], text: bytes) -> None:
    given = [twins if each == "TWINS" else each for each in arguments]
    done = run_here("relay", "--listen", "127.0.0.1:0", *given)
    assert (done.returncode, done.stdout) == (2, b"")
    assert text.lower() in done.stderr.lower()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["google.protobuf", "prometheus_client", "cryptography"])
def test_a_missing_package_is_told(twins: str, module: str) -> None:
    done = run("relay", "--twins", twins, "--listen", "127.0.0.1:0", without=(module,))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"pip install 'wsmux-streams[bus]'" in done.stderr


def test_a_port_that_is_taken_is_told(twins: str) -> None:
    with running("relay", "--twins", twins, "--listen", "127.0.0.1:0") as url:
        done = run_here("relay", "--twins", twins, "--listen", url.removeprefix("ws://"))
    assert done.returncode == 1
    assert b"in use" in done.stderr


# Serving


def test_the_retention_of_topics_has_three_numbers() -> None:
    assert retention(["10", "5000000", "0.5"]) == (10, 5_000_000, 0.5)


def test_topics_name_who_may_publish() -> None:
    assert topic("orders=12,13") == ("orders", [12, 13])


def test_a_topic_that_is_given_again_has_the_twins_of_all() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = "--topic orders=12 --topic news=1 --topic orders=13,14"
    args = parser.parse_args(text.split())
    assert publishers(args.topic) == {"orders": [12, 13, 14], "news": [1]}


def test_a_name_has_one_owner() -> None:
    assert owners([("billing", 12), ("stock", 13), ("billing", 12)]) == {"billing": 12, "stock": 13}
    with pytest.raises(CommandError, match="keeps 'billing' for twin 12 and for 13"):
        owners([("billing", 12), ("billing", 13)])


@pytest.mark.parametrize("text", ["orders", "orders=", "=1", "orders=a", "orders=1,", "orders=-1"])
def test_other_topics_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="TOPIC=TWIN"):
        topic(text)


@pytest.mark.parametrize(
    "more", [[], ["--json", "--limit", "1000,100000", "--ranker_period", "60"]]
)
def test_it_relays(twins: str, more: list[str]) -> None:
    with running(
        "relay", "--twins", twins, "--listen", "127.0.0.1:0", "--domain", "relay.test", *more
    ) as line:
        url = json.loads(line)["url"] if more else line
        link = dial(url, lambda: make_token(identity(1), 1, None, int(time.time())), Deadline(WAIT))
        with Running(link) as one:
            envelope = ask(Address(1), Address(1))
            one.send(envelope.SerializeToString())
            assert one.next() == envelope.SerializeToString()


def test_a_directory_that_is_down_is_told_and_waited_for(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    with running("relay", "--twins", missing, "--listen", "127.0.0.1:0") as url:
        assert url.startswith("ws://127.0.0.1:")
