"""The name of a service is told apart from numbers and addresses, and from sessions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.wire.address import Address, parse_address
from wsmux.bus.wire.names import (
    NAME,
    check_name,
    is_name,
    is_nobody,
    is_reserved,
    name_of,
    shared_address,
)

from ...helpers.tables import each_case


@given(st.from_regex(NAME, fullmatch=True))
def test_a_name_is_no_address_and_has_a_queue(name: str) -> None:
    assert is_name(name)
    assert check_name(name) == name
    with pytest.raises(ValueError, match="expected an address"):
        parse_address(name)
    address = shared_address(12, name)
    assert (address, name_of(address)) == (Address(12, f"@{name}"), name)
    assert is_reserved(address.session)


@each_case
@pytest.mark.parametrize("name", ["", "1", "12:a", "a:b", "@a", "-a", "a b", "a\n", "ä", "a" * 65])
def test_what_is_no_name_is_refused(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ValueError, match="expected a name as a letter"):
        check_name(name)


def test_a_name_is_a_string() -> None:
    with pytest.raises(TypeError, match="expected a name as a string, got 5"):
        check_name(5)


@pytest.mark.parametrize("session", [None, "", "a", "a@b"])
def test_sessions_are_those_of_no_name(session: str | None) -> None:
    assert name_of(Address(1, session)) is None
    assert not is_reserved(session)


def test_some_reserved_sessions_are_those_of_no_name_either() -> None:
    assert name_of(Address(1, "@")) is None
    assert is_reserved("@")


@pytest.mark.parametrize("session", ["@", "@!", "@1", "@a b", "@@a", "@" + "a" * 65])
def test_what_begins_like_a_name_and_is_none_is_nobody(session: str) -> None:
    assert is_nobody(Address(1, session))


@pytest.mark.parametrize("session", [None, "", "a", "a@", "@a", "@billing"])
def test_sessions_and_names_are_somebody(session: str | None) -> None:
    assert not is_nobody(Address(1, session))
