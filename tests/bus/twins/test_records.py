"""A record is a twin, or is refused with a sentence that names what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.twins.records import (
    MAX_RELAYS,
    Twin,
    TwinDirectory,
    parse_domain,
    parse_twin,
    twin_record,
)
from wsmux.bus.wire.address import MAX_TWIN
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.captured import PEOPLE, TWINS, identity
from ...helpers.tables import each_case

ALICE = PEOPLE["alice"]
RECORD: dict[str, Any] = {
    "id": 1,
    "account": ALICE["accountId"],
    "relays": ["relay.test"],
    "pk": ALICE["pk"],
}

BAD_RECORDS: dict[str, Any] = {
    "null": None,
    "a number": 1,
    "text": "1",
    "a list": [RECORD],
    "an empty object": {},
    "true": True,
}
BAD_MEMBERS: dict[str, tuple[str, Any]] = {
    "id 0": ("id", 0),
    "id negative": ("id", -1),
    "id beyond 32 bits": ("id", MAX_TWIN + 1),
    "id text": ("id", "1"),
    "id a fraction": ("id", 1.0),
    "id true": ("id", True),
    "id null": ("id", None),
    "account null": ("account", None),
    "account a number": ("account", 5),
    "account empty": ("account", ""),
    "account with a typo": ("account", ALICE["accountId"][:-1] + "1"),
    "account of 31 bytes": ("account", "0x" + "1" * 62),
    "account no hexadecimal": ("account", "0x" + "x" * 64),
    "account hexadecimal without its mark": ("account", ALICE["account_hex"]),
    "relays text": ("relays", "relay.test"),
    "relays an object": ("relays", {"relay.test": 1}),
    "relays of numbers": ("relays", [1]),
    "relays of null": ("relays", [None]),
    "relays with an empty one": ("relays", ["relay.test", ""]),
    "relays with a URL": ("relays", ["wss://relay.test"]),
    "relays with a path": ("relays", ["relay.test/path"]),
    "relays with a query": ("relays", ["relay.test?x"]),
    "relays with a user": ("relays", ["user@relay.test"]),
    "relays with a space": ("relays", ["relay test"]),
    "relays with a line end": ("relays", ["relay.test\n"]),
    "relays joined as on the chain": ("relays", ["r1.test_r2.test"]),
    "relays that start with a point": ("relays", [".test"]),
    "relays with a port that is none": ("relays", ["relay.test:http"]),
    "relays with two ports": ("relays", ["relay.test:1:2"]),
    "relays beyond ASCII": ("relays", ["rélay.test"]),
    "relays longer than names are": ("relays", ["r" * 254]),
    "too many relays": ("relays", [f"r{n}.test" for n in range(MAX_RELAYS + 1)]),
    "pk empty": ("pk", ""),
    "pk a number": ("pk", 2),
    "pk without its mark": ("pk", ALICE["pk"][2:]),
    "pk of 32 bytes": ("pk", ALICE["pk"][:-2]),
    "pk of 34 bytes": ("pk", ALICE["pk"] + "00"),
    "pk of half a byte more": ("pk", ALICE["pk"] + "0"),
    "pk no hexadecimal": ("pk", ALICE["pk"][:-1] + "g"),
    "pk with spaces": ("pk", ALICE["pk"][:-2] + "  "),
    "pk that is not compressed": ("pk", "0x04" + ALICE["pk"][4:]),
}


@pytest.mark.parametrize("why", BAD_RECORDS)
def test_what_is_no_record_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match="a twin must be an object|a twin's id must be a number"):
        parse_twin(BAD_RECORDS[why])


@each_case
@pytest.mark.parametrize("why", BAD_MEMBERS)
def test_a_bad_member_is_refused(why: str) -> None:
    name, value = BAD_MEMBERS[why]
    with pytest.raises(
        ValueError, match=rf"{name}|an account|SS58|no account|a relay|relays"
    ) as bad:
        parse_twin({**RECORD, name: value})
    assert len(str(bad.value)) < 300


def test_a_record_is_a_twin() -> None:
    assert parse_twin(RECORD) == TWINS[1]


@pytest.mark.parametrize("missing", [{}, {"relays": None, "pk": None}, {"relays": []}])
def test_relays_and_key_may_be_missing(missing: dict[str, Any]) -> None:
    found = parse_twin({"id": 1, "account": ALICE["accountId"], **missing})
    assert (found.relays, found.pk) == ((), None)


def test_members_that_nobody_knows_are_ignored() -> None:
    assert parse_twin({**RECORD, "entities": []}) == TWINS[1]


def test_a_relay_counts_once_and_in_small_letters() -> None:
    found = parse_twin({**RECORD, "relays": ["R1.test", "r2.test:8080", "r1.TEST"]})
    assert found.relays == ("r1.test", "r2.test:8080")


@pytest.mark.parametrize("domain", ["localhost", "127.0.0.1:80", "r-1.test", "a", "1.2.3.4"])
def test_a_host_is_a_domain(domain: str) -> None:
    assert parse_domain(domain) == domain


@pytest.mark.parametrize("twin", TWINS.values(), ids=lambda twin: str(twin.id))
def test_a_twin_gives_its_record_back(twin: Twin) -> None:
    assert parse_twin(json.loads(json.dumps(twin_record(twin)))) == twin


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(RECORD)), values) | values)
def test_any_record_is_a_twin_or_a_typed_error(record: Any) -> None:
    with suppress(ValueError):
        parse_twin({**RECORD, **record} if isinstance(record, dict) else record)


def test_a_directory_is_read_only_unless_it_says_otherwise() -> None:
    class Nobody(TwinDirectory):
        name = "nobody"

        def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
            return None

        def find(self, account: bytes, deadline: Deadline) -> Twin | None:
            return None

    nobody = Nobody()
    assert not nobody.update(identity("alice"), ["relay.test"], None, Deadline(1))
    nobody.close()
    assert nobody.get(1, Deadline(1)) is None
