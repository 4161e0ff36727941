"""Define the record of a twin, and the interface of directories of twins."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...runtime.deadline import Deadline
from ..wire.address import MAX_TWIN
from ..wire.e2e import PUBLIC_BYTES
from ..wire.keys import Identity
from ..wire.ss58 import parse_account

__all__ = [
    "MAX_RELAYS",
    "SILENCE",
    "Twin",
    "TwinDirectory",
    "parse_domain",
    "parse_twin",
    "twin_record",
]

# Relays on one record, each tried in turn. The reference peers write at most 4.
MAX_RELAYS = 16

# Seconds that a registrar or a node may be silent; as the reference peers.
SILENCE = 12.0

# A host name or address, with an optional port. It becomes part of a URL, so no other character is
# allowed.
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[0-9]{1,5})?")


class Twin(NamedTuple):
    """Hold a twin's record in a directory.

    Attributes:
        id: its number.
        account: the public key of its signatures, 32 bytes.
        relays: the domains of the relays that take messages for it.
        pk: the public key for encryption, 33 bytes, or ``None`` if it published none.
    """

    id: int
    account: bytes
    relays: tuple[str, ...] = ()
    pk: bytes | None = None


def parse_domain(text: object) -> str:
    """Return the domain of a relay, in lower case.

    Raises:
        ValueError: it is not a host with an optional port.
    """
    if not isinstance(text, str) or not _DOMAIN.fullmatch(text.lower()):
        raise ValueError(f"expected the domain of a relay, as 'relay.test', got {_short(text)}")
    return text.lower()


def parse_twin(record: object) -> Twin:
    """Return the twin that a JSON object describes, ignoring unknown members.

    The object is
    ``{"id": 1, "account": SS58 or "0x...", "relays": ["relay.test"], "pk": "0x..." or null}``;
    ``relays`` and ``pk`` are optional.

    Raises:
        ValueError: the object is not of that form.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"a twin must be an object, not {_short(record)}")
    number, account = record.get("id"), record.get("account")
    if type(number) is not int or not 0 < number <= MAX_TWIN:
        raise ValueError(f"a twin's id must be a number from 1 to {MAX_TWIN}, not {_short(number)}")
    if not isinstance(account, str):
        raise ValueError(f"the account of twin {number} must be text, not {_short(account)}")
    relays = record.get("relays")
    if relays is not None and not isinstance(relays, list):
        raise ValueError(f"the relays of twin {number} must be a list, not {_short(relays)}")
    domains = tuple(dict.fromkeys(parse_domain(relay) for relay in relays or ()))
    if len(domains) > MAX_RELAYS:
        raise ValueError(f"twin {number} has {len(domains)} relays, more than {MAX_RELAYS}")
    return Twin(number, parse_account(account), domains, _parse_key(number, record.get("pk")))


def twin_record(twin: Twin) -> dict[str, Any]:
    """Return the JSON object that describes a twin, as ``parse_twin`` reads it."""
    return {
        "id": twin.id,
        "account": f"0x{twin.account.hex()}",
        "relays": list(twin.relays),
        "pk": None if twin.pk is None else f"0x{twin.pk.hex()}",
    }


def _parse_key(number: int, text: object) -> bytes | None:
    if text is None:
        return None
    key = b""
    if isinstance(text, str) and re.fullmatch(r"0x[0-9a-fA-F]*", text) and len(text) % 2 == 0:
        key = bytes.fromhex(text[2:])
    if len(key) != PUBLIC_BYTES or key[0] not in (2, 3):
        raise ValueError(
            f"the pk of twin {number} must be null, or 0x and a compressed point of {PUBLIC_BYTES} "
            f"bytes in hexadecimal, not {_short(text)}"
        )
    return key


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


class TwinDirectory(ABC):
    """Look up twins. Any thread may use a directory.

    Attributes:
        name: names the source, for errors.
    """

    name: str

    @abstractmethod
    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None`` if there is none with that number.

        Blocks until the directory has answered, at most until the deadline.

        Raises:
            TwinsUnavailable: the directory could not be asked, or did not answer in time.
        """

    @abstractmethod
    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Return the twin of an account, or ``None``; blocks and raises as ``get``."""

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        """Write the relays and the key of the identity's own twin; ``False`` if read-only.

        Most directories are read-only. Blocks and raises as ``get``.
        """
        return False

    def close(self) -> None:  # noqa: B027 - only some have connections
        """Close connections; a later look-up may open them again."""
