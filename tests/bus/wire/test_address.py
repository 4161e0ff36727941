"""An address is the same as text, as a stream's key and on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.wire.address import (
    MAX_TWIN,
    Address,
    address_of,
    is_text,
    parse_address,
    put_address,
)
from wsmux.bus.wire.messages import AddressMessage, Envelope

from ...helpers.tables import each_case

texts = st.text(st.characters(exclude_categories=["Cs"]))
addresses = st.builds(Address, st.integers(1, MAX_TWIN), st.none() | texts)

BAD = [
    "",
    " ",
    ":",
    ":s",
    "x",
    "-1",
    "+1",
    "-0",
    "00",
    "01",
    "1 ",
    " 1",
    "1\n",
    "1_0",
    "1.0",
    "1e3",
    "0x10",
    "\u0661",
    "\uff11",
    "1,s",
    "a:1",
    " 1:s",
    "4294967296",
    "4294967296:s",
    "99999999999",
    "9" * 5000,
    "None",
    "stream:1",
]


@each_case
@pytest.mark.parametrize("text", BAD)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address 'twin' or 'twin:session'"):
        parse_address(text)


@pytest.mark.parametrize("twin", [0, MAX_TWIN])
def test_the_first_and_the_last_number_are_taken(twin: int) -> None:
    assert parse_address(str(twin)) == Address(twin, None)


@given(addresses)
def test_text_gives_the_address_back(address: Address) -> None:
    assert parse_address(str(address)) == address


@given(addresses)
def test_the_wire_gives_the_address_back(address: Address) -> None:
    message = AddressMessage()
    put_address(message, address)
    assert address_of(AddressMessage.FromString(message.SerializeToString())) == address


@given(addresses, addresses)
def test_addresses_with_one_text_are_one(one: Address, other: Address) -> None:
    assert (str(one) == str(other)) == (one == other)


def test_an_address_that_was_not_set_names_nobody() -> None:
    assert address_of(Envelope().source) is None


@pytest.mark.parametrize("message", [AddressMessage(), AddressMessage(connection="s")])
def test_twin_0_names_nobody(message: AddressMessage) -> None:
    assert address_of(message) is None


def test_an_empty_session_is_a_session() -> None:
    message = AddressMessage()
    put_address(message, Address(1, ""))
    assert message.HasField("connection")
    assert address_of(message) != Address(1)


def test_an_address_replaces_the_one_before() -> None:
    message = AddressMessage(twin=1, connection="s")
    put_address(message, Address(2))
    assert address_of(message) == Address(2)


def test_an_address_that_was_written_counts_as_set() -> None:
    envelope = Envelope()
    put_address(envelope.destination, Address(0))
    assert envelope.HasField("destination")


@pytest.mark.parametrize(
    "address", [Address(-1), Address(MAX_TWIN + 1), Address(1, "\ud800"), Address(2**80)]
)
def test_what_the_wire_cannot_carry_is_refused(address: Address) -> None:
    with pytest.raises(ValueError, match=r".+"):
        put_address(AddressMessage(), address)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\udc00\ud800", "\ud83d \ude00"])
def test_half_a_character_is_no_text(text: str) -> None:
    assert not is_text(text)


@given(texts)
def test_whole_characters_are_text(text: str) -> None:
    assert is_text(text)


@given(addresses)
def test_people_are_shown_an_address_on_one_line(address: Address) -> None:
    assert address.shown().isprintable()


def test_a_session_cannot_write_lines_of_a_log() -> None:
    assert Address(7, "s\n1 connected\x1b[2J").shown() == "7:s 1 connected [2J"
