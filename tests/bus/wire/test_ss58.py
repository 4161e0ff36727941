"""The text of an account is read exactly, and a typo in it is found."""

from __future__ import annotations

from contextlib import suppress

import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.wire.ss58 import parse_account, ss58_decode, ss58_encode

from ...helpers.bus.captured import PEOPLE
from ...helpers.tables import each_case

ALICE = PEOPLE["alice"]["accountId"]
ACCOUNT = bytes.fromhex(PEOPLE["alice"]["account_hex"])
HEX = f"0x{ACCOUNT.hex()}"


def checked(body: bytes) -> str:
    """Return what a body of any shape looks like with a right checksum."""
    from hashlib import blake2b

    return base58.b58encode(body + blake2b(b"SS58PRE" + body).digest()[:2]).decode()


BAD = {
    "nothing": "",
    "a space": " ",
    "one character": "5",
    "the last character left out": ALICE[:-1],
    "a character more": ALICE + "1",
    "a character changed": ALICE[:-1] + ("1" if ALICE[-1] != "1" else "2"),
    "two characters swapped": ALICE[:10] + ALICE[11] + ALICE[10] + ALICE[12:],
    "a character base58 lacks": "0" + ALICE[1:],
    "a letter beyond ASCII": "é" + ALICE[1:],
    "a space before": f" {ALICE}",
    "far too long": ALICE * 1000,
    "an account of 31 bytes": checked(b"\x2a" + bytes(31)),
    "an account of 33 bytes": checked(b"\x2a" + bytes(33)),
    "an account of 20 bytes": checked(b"\x2a" + bytes(20)),
    "a prefix of two bytes": checked(b"\x40\x00" + bytes(31)),
    "a wrong checksum": base58.b58encode(b"\x2a" + ACCOUNT + b"\0\0").decode(),
}
BAD_HEX = {
    "no digit": "0x",
    "a digit too few": HEX[:-1],
    "a byte too few": HEX[:-2],
    "a byte too many": HEX + "00",
    "no hexadecimal": HEX[:-1] + "g",
    "another prefix": "0X" + HEX[2:],
    "none": HEX[2:],
}


@each_case
@pytest.mark.parametrize("why", BAD)
def test_bad_text_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match="SS58 address"):
        ss58_decode(BAD[why])


@pytest.mark.parametrize("why", BAD_HEX)
def test_bad_hexadecimal_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match="account|SS58 address"):
        parse_account(BAD_HEX[why])


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_an_account_of_another_size_has_no_text(size: int) -> None:
    with pytest.raises(ValueError, match=f"an account has 32 bytes, not {size}"):
        ss58_encode(bytes(size))


@pytest.mark.parametrize("prefix", [0, 2, 42, 63])
def test_any_prefix_of_one_byte_is_read(prefix: int) -> None:
    assert ss58_decode(checked(bytes((prefix,)) + ACCOUNT)) == ACCOUNT


@pytest.mark.parametrize("text", [ALICE, HEX, HEX.upper().replace("0X", "0x")])
def test_an_account_is_read_in_both_forms(text: str) -> None:
    assert parse_account(text) == ACCOUNT


@given(st.binary(min_size=32, max_size=32))
def test_text_gives_the_account_back(account: bytes) -> None:
    assert parse_account(ss58_encode(account)) == account


@given(st.text(max_size=60) | st.from_regex(r"5[1-9A-HJ-NP-Za-km-z]{46,48}", fullmatch=True))
def test_any_text_is_an_account_or_a_typed_error(text: str) -> None:
    with suppress(ValueError):
        assert len(parse_account(text)) == 32
