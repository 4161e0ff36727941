"""``wsmux peer``: what it wants to know, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wsmux.bus.twins.records import twin_record

from ..helpers.bus.people import person, table_of
from ..helpers.commands import run, running

ALICE = person(1)

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


def test_files_of_others_go_where_it_is_told(twins: str, secret: str, tmp_path: Path) -> None:
    wanted = ("--mnemonic-file", secret, "-k", "ed25519", "--twins", twins, *NOWHERE)
    with running("peer", *wanted, "-u", "--upload-dir", str(tmp_path / "files")) as line:
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
    result = run("peer", *options)
    assert result.returncode == 2
    assert text in result.stderr.decode()
    assert SECRET not in result.stderr.decode()


def test_an_unknown_twin_is_told(twins: str) -> None:
    result = run("peer", "-m", f"0x{9:064x}", "-k", "ed25519", "--twins", twins, *NOWHERE)
    assert result.returncode == 1
    assert "no twin has the account" in result.stderr.decode()


def test_what_is_not_installed_is_named(twins: str) -> None:
    given = ("-m", SECRET, "-k", "ed25519", "--twins", twins, *NOWHERE)
    result = run("peer", *given, without=("redis",))
    assert result.returncode == 2
    assert "pip install 'wsmux-streams[bus]'" in result.stderr.decode()
