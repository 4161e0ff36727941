"""Define entries of a signed directory: what a twin says of itself, signed with its key.

The signature covers the account, the relays, the key and a serial number, not the number of the
twin, which the directory gives. A later entry has a higher serial, here the time in milliseconds,
so that an old one cannot replace it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..wire.keys import SIGNATURE_BYTES, Identity, verify
from .records import Twin, parse_domain, parse_twin, twin_record

__all__ = ["Entry", "entry_record", "is_signed", "make_entry", "parse_entry"]

# SQLite keeps integers of 63 bits.
MAX_SERIAL = 2**63 - 1


class Entry(NamedTuple):
    """Hold what a twin says of itself; ``twin.id`` is the number that a directory gave it."""

    twin: Twin
    serial: int
    signature: bytes


def _statement(twin: Twin, serial: int) -> bytes:
    """Return what is signed. No envelope or token looks like it."""
    record = twin_record(twin)
    parts = ["wsmux twin", record["account"], record["relays"], record["pk"], serial]
    return json.dumps(parts, separators=(",", ":")).encode()


def make_entry(identity: Identity, relays: Iterable[str], pk: bytes | None, serial: int) -> Entry:
    """Return a signed entry; the number of its twin is 1, until a directory gives it another."""
    twin = Twin(1, identity.account, tuple(parse_domain(relay) for relay in relays), pk)
    return Entry(twin, serial, identity.sign(_statement(twin, serial)))


def is_signed(entry: Entry) -> bool:
    """Return whether the account of an entry signed it.

    Raises:
        ImportError: the signature needs a package that is not installed.
    """
    return verify(entry.twin.account, _statement(entry.twin, entry.serial), entry.signature)


def parse_entry(record: object) -> Entry:
    """Return the entry that a JSON object describes; its signature is not checked.

    The object is that of ``parse_twin``, whose ``id`` may be absent here, with ``serial``, a
    number, and ``signature``, ``0x`` and hexadecimal.

    Raises:
        ValueError: the object is not of that form.
    """
    if not isinstance(record, Mapping):
        raise ValueError("an entry must be an object")
    twin = parse_twin({"id": 1, **record})
    serial, text = record.get("serial"), record.get("signature")
    if type(serial) is not int or not 0 < serial <= MAX_SERIAL:
        raise ValueError(f"the serial of an entry must be a number from 1 to {MAX_SERIAL}")
    signature = b""
    if isinstance(text, str) and text.startswith("0x"):
        signature = bytes.fromhex(text[2:])
    if len(signature) != SIGNATURE_BYTES:
        raise ValueError(f"the signature of an entry must be 0x and {SIGNATURE_BYTES} bytes in hex")
    return Entry(twin, serial, signature)


def entry_record(entry: Entry) -> dict[str, Any]:
    """Return the JSON object that describes an entry, as ``parse_entry`` reads it."""
    signed = {"serial": entry.serial, "signature": f"0x{entry.signature.hex()}"}
    return twin_record(entry.twin) | signed
