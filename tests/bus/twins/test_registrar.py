"""A signed directory: who may write what, what cannot be replayed, and the bounds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from wsmux.bus.client import Client
from wsmux.bus.errors import TwinsUnavailable
from wsmux.bus.twins.entries import Entry, entry_record, make_entry, parse_entry
from wsmux.bus.twins.entry_store import EntryStore, StoreFull
from wsmux.bus.twins.http import HttpTwins
from wsmux.bus.twins.records import Twin
from wsmux.bus.twins.registrar import MAX_BODY, RegistrarServer, serve_registrar
from wsmux.bus.wire.keys import Identity, KeyType
from wsmux.runtime.deadline import Deadline

from ...helpers.timeouts import WAIT

ALICE, BOB = Identity.generate(), Identity.generate(KeyType.SR25519)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistrarServer]:
    with serve_registrar(tmp_path / "twins.db") as made:
        yield made


@pytest.fixture
def twins(server: RegistrarServer) -> Iterator[HttpTwins]:
    made = HttpTwins(server.url)
    yield made
    made.close()


def soon() -> Deadline:
    return Deadline(WAIT)


def post(server: RegistrarServer, record: Any) -> requests.Response:
    return requests.post(f"{server.url}/twins", json=record, timeout=WAIT)


def entry(serial: int, relays: tuple[str, ...] = ("relay.test",), who: Identity = ALICE) -> Any:
    return entry_record(make_entry(who, relays, who.e2e_public, serial))


def test_the_first_entry_claims_the_next_number(server: RegistrarServer, twins: HttpTwins) -> None:
    first = twins.register(ALICE, ["relay.test"], ALICE.e2e_public, soon())
    second = twins.register(BOB, [], None, soon())
    assert first == Twin(1, ALICE.account, ("relay.test",), ALICE.e2e_public)
    assert second == Twin(2, BOB.account)
    assert [twins.get(number, soon()) for number in (1, 2, 3)] == [first, second, None]
    assert twins.find(BOB.account, soon()) == second
    assert twins.find(bytes(32), soon()) is None


def test_an_entry_is_updated_and_keeps_its_number(
    server: RegistrarServer, twins: HttpTwins
) -> None:
    twins.register(ALICE, ["relay.test"], None, soon())
    assert twins.update(ALICE, ["other.test"], ALICE.e2e_public, soon())
    assert twins.get(1, soon()) == Twin(1, ALICE.account, ("other.test",), ALICE.e2e_public)


def test_an_old_entry_cannot_be_replayed(server: RegistrarServer, twins: HttpTwins) -> None:
    old, new = entry(1, ("old.test",)), entry(2, ("new.test",))
    assert [post(server, each).status_code for each in (old, new, old, new)] == [201, 200, 409, 409]
    twin = twins.get(1, soon())
    assert twin is not None
    assert twin.relays == ("new.test",)


@pytest.mark.parametrize(
    "changes",
    [
        {"serial": 2},
        {"relays": ["evil.test"]},
        {"pk": None},
        {"account": f"0x{BOB.account.hex()}"},
        {"signature": "0x" + "65" + "00" * 64},
    ],
)
def test_only_the_account_writes_its_entry(
    server: RegistrarServer, twins: HttpTwins, changes: dict[str, Any]
) -> None:
    assert post(server, entry(1) | changes).status_code == 401
    assert twins.get(1, soon()) is None


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        "x",
        entry(1) | {"serial": 0},
        entry(1) | {"serial": 2**63},
        entry(1) | {"serial": True},
        entry(1) | {"signature": "0x"},
        entry(1) | {"signature": "0xzz"},
        entry(1) | {"signature": None},
        entry(1) | {"relays": ["a b"]},
        entry(1) | {"relays": [f"r{number}.test" for number in range(17)]},
    ],
)
def test_what_is_not_an_entry_is_refused(server: RegistrarServer, record: Any) -> None:
    answer = post(server, record)
    assert (answer.status_code, "not an entry" in answer.text) == (400, True)


def test_a_body_has_a_bound(server: RegistrarServer) -> None:
    assert post(server, entry(1) | {"x": "y" * MAX_BODY}).status_code == 413


@pytest.mark.parametrize("path", ["/", "/twins/", "/twins/x", "/twins/" + "9" * 99, "/other"])
def test_other_pages_are_not_found(server: RegistrarServer, path: str) -> None:
    assert requests.get(server.url + path, timeout=WAIT).status_code == 404


@pytest.mark.parametrize("query", ["", "?account=0xzz"])
def test_an_account_must_be_hexadecimal(server: RegistrarServer, query: str) -> None:
    status = requests.get(f"{server.url}/twins{query}", timeout=WAIT).status_code
    assert status == (404 if not query else 400)


def test_an_account_writes_so_often(server: RegistrarServer, monkeypatch: Any) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    statuses = [post(server, entry(number)).status_code for number in range(1, 13)]
    assert statuses == [201] + [200] * 9 + [429] * 2
    assert post(server, entry(1, who=BOB)).status_code == 201


def test_an_address_posts_so_often(server: RegistrarServer, monkeypatch: Any) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    assert {post(server, {}).status_code for _ in range(60)} == {400}
    assert post(server, entry(1)).status_code == 429


def test_what_was_registered_is_there_after_a_restart(tmp_path: Path) -> None:
    for status in (201, 409):
        with serve_registrar(tmp_path / "twins.db") as made:
            assert post(made, entry(1)).status_code == status


def test_a_database_that_fails_is_answered_with_503(
    server: RegistrarServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sqlite3.connect(tmp_path / "twins.db") as other:
        other.execute("DROP TABLE twins")
    other.close()
    answer = requests.get(f"{server.url}/twins/1", timeout=WAIT)
    assert (answer.status_code, answer.text) == (503, "the directory cannot be read now\n")
    assert "no such table" in caplog.text


def test_the_twins_have_a_bound() -> None:
    store = EntryStore(":memory:", max_twins=1)
    assert store.put(make_entry(ALICE, [], None, 1)) == 1
    with pytest.raises(StoreFull, match="maximum"):
        store.put(make_entry(BOB, [], None, 1))
    assert store.put(make_entry(ALICE, [], None, 2)) == 1
    store.close()


def test_a_registrar_that_changes_an_entry_is_not_believed(
    server: RegistrarServer, twins: HttpTwins
) -> None:
    made = make_entry(ALICE, ["relay.test"], None, 1)
    evil = Entry(made.twin._replace(relays=("evil.test",)), made.serial, made.signature)
    server._store.put(evil)
    with pytest.raises(TwinsUnavailable, match="twin 1 with a wrong signature"):
        twins.get(1, soon())


def test_an_entry_survives_its_record() -> None:
    made = make_entry(BOB, ["relay.test:80"], BOB.e2e_public, 7)
    assert parse_entry(json.loads(json.dumps(entry_record(made)))) == made


def test_a_client_finds_itself_there(server: RegistrarServer, twins: HttpTwins) -> None:
    twins.register(BOB, [], None, soon())
    with Client(BOB, "ws://relay.test", server.url) as client:
        assert client.address.twin == 1
