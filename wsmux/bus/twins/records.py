"""Say what a twin is, and what a directory of twins answers."""

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

__all__ = ["MAX_RELAYS", "Twin", "TwinDirectory", "parse_domain", "parse_twin", "twin_record"]

# Relays on one record. The known peers write at most 4; each is tried in turn.
MAX_RELAYS = 16

# A host name or address, with or without a port. It becomes part of a URL, so nothing else may
# stand in it.
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[0-9]{1,5})?")


class Twin(NamedTuple):
    """Hold what a directory knows of a twin.

    Attributes:
        id: its number.
        account: the key of its signatures, 32 bytes.
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
        ValueError: it is no host with or without a port.
    """
    if not isinstance(text, str) or not _DOMAIN.fullmatch(text.lower()):
        raise ValueError(f"a relay is named by its domain, as 'relay.test', not {_short(text)}")
    return text.lower()


def parse_twin(record: object) -> Twin:
    """Return the twin that a JSON object describes; members that nobody knows are ignored.

    The object is as ``{"id": 1, "account": SS58 or "0x...", "relays": ["relay.test"],
    "pk": "0x..." or null}``; ``relays`` and ``pk`` may be left out.

    Raises:
        ValueError: it does not.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"a twin is an object, not {_short(record)}")
    number, account = record.get("id"), record.get("account")
    if type(number) is not int or not 0 < number <= MAX_TWIN:
        raise ValueError(f"the id of a twin is a number from 1 to {MAX_TWIN}, not {_short(number)}")
    if not isinstance(account, str):
        raise ValueError(f"the account of twin {number} is text, not {_short(account)}")
    relays = record.get("relays")
    if relays is not None and not isinstance(relays, list):
        raise ValueError(f"the relays of twin {number} are a list, not {_short(relays)}")
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
            f"the pk of twin {number} is null or 0x and a compressed point of {PUBLIC_BYTES} bytes "
            f"in hexadecimal, not {_short(text)}"
        )
    return key


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


class TwinDirectory(ABC):
    """Answer who a twin is. Many threads may ask one directory.

    Attributes:
        name: where it looks, for errors.
    """

    name: str

    @abstractmethod
    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None`` if there is none of that number.

        Blocks until the directory has answered, or the deadline.

        Raises:
            TwinsUnavailable: the directory could not be asked, or not in time.
        """

    @abstractmethod
    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Return the twin of an account, or ``None``; blocks and raises as ``get``."""

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        """Write the relays and the key of the identity's own twin; ``False`` if it cannot.

        Most directories are read-only; blocks and raises as ``get``.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of connections; asking afterwards may open them again."""
