"""``wsmux peer``: what it wants to know, and what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsmux.bus import FileTwins, serve_relay
from wsmux.bus.twins.records import twin_record

from ..helpers.bus.people import DOMAIN, person, table_of
from ..helpers.commands import run, run_here, running

ALICE, BOB = person(1), person(3)

SECRET = f"0x{1:064x}"

# Nobody listens there.
NOWHERE = ("--relay", "ws://localhost:9", "--redis", "redis://localhost:9")


@pytest.fixture
def twins(tmp_path: Path) -> str:
    path = tmp_path / "twins.json"
    records = [twin_record(twin) for twin in table_of(ALICE).twins.values()]
    path.write_text(json.dumps(records))
    return str(path)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return str(path)


def test_the_first_line_is_the_twin(twins: str, secret: str) -> None:
    wanted = ("--mnemonic-file", secret, "-k", "ed25519", "--twins", twins, *NOWHERE)
    with running("peer", *wanted) as line:
        assert line == "1"


def test_it_is_json_on_demand(twins: str) -> None:
    wanted = ("--seed", SECRET, "--key-type", "ed25519", "--twins", twins, *NOWHERE)
    with running("peer", *wanted, "--json", "--no-update", "-d") as line:
        assert json.loads(line) == {"twin": 1, "relays": ["ws://localhost:9"]}


@pytest.mark.parametrize("options", [("-u", "--upload-dir"), ("-u",), ("--uploads",)])
def test_files_of_others_go_where_it_is_told(
    twins: str, secret: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    wanted = ("--mnemonic-file", secret, "-k", "ed25519", "--twins", twins, *NOWHERE)
    with running("peer", *wanted, *options, str(tmp_path / "files")) as line:
        assert line == "1"
    assert (tmp_path / "files").is_dir()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"--twins": None}, "give --twins or --substrate"),
        ({"-m": None}, "required"),
        ({"-m": "nothing clog"}, "wsmux peer:"),
        ({"--relay": None}, "required"),
        ({"--relay": "http://relay.test"}, "relay"),
        ({"--relay": "ws://127.0.0.1:9"}, "no name to put on record"),
        ({"--redis": "http://localhost"}, "redis://"),
        ({"--key-type": "rsa"}, "invalid choice"),
    ],
)
def test_wrong_usage_is_told(twins: str, changes: dict[str, str | None], text: str) -> None:
    given = {
        "-m": SECRET,
        "--key-type": "ed25519",
        "--twins": twins,
        "--relay": "ws://localhost:9",
        "--redis": "redis://localhost:9",
    }
    options = [part for name, value in (given | changes).items() if value for part in (name, value)]
    result = run_here("peer", *options)
    assert result.returncode == 2
    assert text in result.stderr.decode()
    assert SECRET not in result.stderr.decode()


def test_an_unknown_twin_is_told(twins: str) -> None:
    result = run_here("peer", "-m", f"0x{9:064x}", "-k", "ed25519", "--twins", twins, *NOWHERE)
    assert result.returncode == 1
    assert "no twin has the account" in result.stderr.decode()


def test_a_wrong_key_type_is_told(twins: str) -> None:
    result = run_here("peer", "-m", SECRET, "--twins", twins, *NOWHERE)
    assert result.returncode == 1
    assert "give that type (-k ed25519)" in result.stderr.decode()


def test_what_is_not_installed_is_named(twins: str) -> None:
    given = ("-m", SECRET, "-k", "ed25519", "--twins", twins, *NOWHERE)
    result = run("peer", *given, without=("redis",))
    assert result.returncode == 2
    assert "pip install 'wsmux-streams[bus]'" in result.stderr.decode()


# Echoes


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Serve a relay; return the options that two twins of it share."""
    path = tmp_path / "both.json"
    records = [twin_record(twin) for twin in table_of(ALICE, BOB).twins.values()]
    path.write_text(json.dumps(records))
    with serve_relay([DOMAIN], FileTwins(path)) as relay:
        yield "--twins", str(path), "-k", "ed25519", "--relay", relay.url


def test_echoes_show_that_two_twins_reach_each_other(network: tuple[str, ...]) -> None:
    with running("peer", "echo", "--seed", f"0x{3:064x}", *network) as line:
        assert line == "3"
        asking = ("peer", "echo", "--to", "3", "--seed", SECRET, *network)
        done = run(*asking, "--count", "3", "--size", "7")
        assert done.returncode == 0
        assert re.fullmatch(rb"3 of 3 echoes from 3, median [0-9.]+ ms\n", done.stdout)
        assert done.stderr.count(b"3: 7 bytes in ") == 3
        told = json.loads(run_here(*asking, "--count", "1", "--json").stdout)
        assert told["to"] == "3"
        assert [each > 0 for each in told["milliseconds"]] == [True]


def test_echoes_that_fail_say_why(network: tuple[str, ...]) -> None:
    asking = ("peer", "echo", "--seed", SECRET, *network, "--count", "1")
    done = run_here(*asking, "--to", "9")
    assert (done.returncode, done.stdout) == (1, b"0 of 1 echoes from 9\n")
    assert b"unknown twin id '9'" in done.stderr
    done = run_here(*asking, "--to", "3", "--timeout", "2", "--json")  # which is not connected
    assert (done.returncode, json.loads(done.stdout)["milliseconds"]) == (1, [None])
    assert b"timed out waiting for the answer to 'echo'" in done.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("echo", "--to", "x"), b"--to: expected an address"),
        (("echo", "--to", "3", "--count", "0"), b"--count must be at least 1"),
        (("--to", "3"), b"--to is for 'wsmux peer echo'"),
        (("ping",), b"invalid choice: 'ping'"),
    ],
)
def test_echoes_are_asked_for_rightly(
    twins: str, secret: str, options: tuple[str, ...], text: bytes
) -> None:
    wanted = ("--mnemonic-file", secret, "-k", "ed25519", "--twins", twins)
    done = run_here("peer", *options, *wanted, "--relay", "ws://localhost:9")
    assert done.returncode == 2
    assert text in done.stderr
