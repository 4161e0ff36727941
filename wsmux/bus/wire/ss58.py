"""Encode and decode accounts as SS58: base58 of prefix, account and checksum.

Supports accounts of 32 bytes and prefixes of one byte, up to 63. TFChain uses 42, the generic
prefix of Substrate; others are accepted too, since only the account matters.
"""

from __future__ import annotations

from hashlib import blake2b

from ...runtime.hints import how_to_install

try:
    from base58 import b58decode, b58encode
except ImportError as error:
    raise ImportError(f"wsmux.bus needs base58: {how_to_install('bus')}") from error

__all__ = ["ACCOUNT_BYTES", "parse_account", "ss58_decode", "ss58_encode"]

ACCOUNT_BYTES = 32

GENERIC = 42
MAX_PREFIX = 63
CHECKSUM_BYTES = 2

# Maximum number of characters that encode 35 bytes.
MAX_TEXT = 50


def _checksum(body: bytes) -> bytes:
    return blake2b(b"SS58PRE" + body).digest()[:CHECKSUM_BYTES]


def ss58_encode(account: bytes) -> str:
    """Return the SS58 text of an account, with the prefix 42.

    Raises:
        ValueError: the account does not have 32 bytes.
    """
    if len(account) != ACCOUNT_BYTES:
        raise ValueError(f"an account has {ACCOUNT_BYTES} bytes, not {len(account)}")
    body = bytes((GENERIC,)) + account
    return b58encode(body + _checksum(body)).decode()


def ss58_decode(text: str) -> bytes:
    """Return the account of an SS58 text.

    Raises:
        ValueError: the text is not base58, or has the wrong length or checksum.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"an SS58 address has at most {MAX_TEXT} characters, not {len(text)}")
    try:
        whole = b58decode(text.encode("ascii"))
    except ValueError as failure:
        raise ValueError(f"{text!r} is not an SS58 address: it is not base58") from failure
    body, checksum = whole[:-CHECKSUM_BYTES], whole[-CHECKSUM_BYTES:]
    if len(body) != 1 + ACCOUNT_BYTES or body[0] > MAX_PREFIX:
        raise ValueError(
            f"{text!r} is not an SS58 address of {ACCOUNT_BYTES} bytes with a prefix up to "
            f"{MAX_PREFIX}"
        )
    if _checksum(body) != checksum:
        raise ValueError(f"the checksum of the SS58 address {text!r} is wrong: look for a typo")
    return body[1:]


def parse_account(text: str) -> bytes:
    """Return the account in SS58 text, or in ``0x`` and 64 hexadecimal digits.

    Raises:
        ValueError: the text is neither.
    """
    if not text.startswith("0x"):
        return ss58_decode(text)
    try:
        account = bytes.fromhex(text[2:])
    except ValueError as failure:
        raise ValueError(f"{text[:80]!r} is not an account: it is not hexadecimal") from failure
    if len(account) != ACCOUNT_BYTES:
        raise ValueError(f"an account has {ACCOUNT_BYTES} bytes, not {len(account)}")
    return account
