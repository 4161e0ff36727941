"""``wsmux twin new``: the secret, its file, and the entry in a directory."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from wsmux.bus.errors import BusError
from wsmux.bus.twins.http import HttpTwins
from wsmux.bus.twins.new_twin import add_to_file, keep_secret
from wsmux.bus.twins.registrar import serve_registrar
from wsmux.bus.twins.sources import FileTwins
from wsmux.bus.wire.keys import Identity
from wsmux.runtime.deadline import Deadline

from ..helpers.commands import run, run_here
from ..helpers.raw_peer import WAIT


def test_a_new_twin_is_in_the_file(tmp_path: Path) -> None:
    twins, name = tmp_path / "twins.json", tmp_path / "alice"
    given = ("twin", "new", str(name), "--twins", str(twins), "--relay", "Localhost")
    assert run_here(*given).stdout == b"1\n"
    secret = tmp_path / "alice.mnemonic"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    identity = Identity.from_secret(secret.read_text(), "ed25519")
    twin = FileTwins(twins).get(1, Deadline(WAIT))
    assert twin is not None
    assert (twin.account, twin.relays) == (identity.account, ("localhost",))
    assert twin.pk == identity.e2e_public
    assert sorted(each.name for each in tmp_path.iterdir()) == ["alice.mnemonic", "twins.json"]


def test_the_next_twin_has_the_next_number(tmp_path: Path) -> None:
    for number, name in enumerate(("alice", "bob"), 1):
        done = run_here(
            *("twin", "new", str(tmp_path / name), "--twins", str(tmp_path / "t"), "--json"),
            *("-k", "sr25519"),
        )
        shown = json.loads(done.stdout)
        words = Path(shown["mnemonic_file"]).read_text()
        assert shown["twin"] == number
        assert shown["account"] == Identity.from_secret(words, "sr25519").address


def test_a_secret_is_never_overwritten(tmp_path: Path) -> None:
    secret = tmp_path / "alice.mnemonic"
    secret.write_text("mine")
    done = run("twin", "new", str(tmp_path / "alice"), "--twins", str(tmp_path / "twins.json"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"exists and is left alone" in done.stderr
    assert secret.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["alice.mnemonic"]


def test_a_registrar_gives_the_number_also_after_a_failure(tmp_path: Path) -> None:
    given = ("twin", "new", str(tmp_path / "alice"), "--relay", "relay.test", "--registrar")
    failed = run_here(*given, "http://127.0.0.1:9")
    assert failed.returncode == 1
    assert b"--again" in failed.stderr
    with serve_registrar(tmp_path / "twins.db") as server:
        assert run_here(*given, server.url, "--again").stdout == b"1\n"
        twins = HttpTwins(server.url)
        found = twins.get(1, Deadline(WAIT))
        twins.close()
    secret = (tmp_path / "alice.mnemonic").read_text()
    assert secret.encode() not in failed.stderr
    assert found is not None
    assert found.account == Identity.from_secret(secret, "ed25519").account


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], b"required"),
        (["--twins", "x", "--registrar", "http://x"], b"not allowed"),
        (["--twins", "x", "--relay", "a b"], b"expected the domain of a relay"),
        (["--twins", "x", "-k", "rsa"], b"invalid choice"),
    ],
)
def test_wrong_usage_is_told(tmp_path: Path, arguments: list[str], text: bytes) -> None:
    done = run_here("twin", "new", str(tmp_path / "alice"), *arguments)
    assert (done.returncode, text in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{}", "[1]", "nothing", '[{"id": 0}]'])
def test_what_is_not_a_list_of_twins_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "twins.json"
    path.write_text(content)
    with pytest.raises(BusError, match="is not a list of twins"):
        add_to_file(path, Identity.generate(), [])
    assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_account_is_added_once(tmp_path: Path) -> None:
    path, identity = tmp_path / "twins.json", Identity.generate()
    assert add_to_file(path, identity, []).id == 1
    path.chmod(0o640)
    with pytest.raises(BusError, match="has a twin of the account"):
        add_to_file(path, identity, [])
    assert add_to_file(path, Identity.generate(), []).id == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_two_cannot_be_added_at_once(tmp_path: Path) -> None:
    (tmp_path / "twins.json.lock").touch()
    with pytest.raises(FileExistsError):
        add_to_file(tmp_path / "twins.json", Identity.generate(), [])


def test_a_secret_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        keep_secret(tmp_path / "missing" / "alice.mnemonic", "words")
