"""Look up twins on a node of TFChain, through substrate-interface.

That client serves one thread at a time and is slow to connect, so one connection is kept and
threads take turns. Its exceptions have no common base: any exception counts as a failure of the
node, and the next look-up reconnects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ...runtime.deadline import Deadline
from ...runtime.hints import how_to_install
from ..errors import FAILED, BusError, TwinsUnavailable
from ..wire.keys import Identity
from ..wire.ss58 import parse_account
from .records import MAX_RELAYS, SILENCE, Twin, TwinDirectory, parse_domain

__all__ = ["ChainTwins", "split_domains"]

MODULE = "TfgridModule"

# Separates domains in the single text that the chain stores.
MARK = "_"

_Result = TypeVar("_Result")


def _client() -> Any:
    try:
        import substrateinterface  # an extra of its own
    except ImportError as error:
        text = f"twins of a chain need substrate-interface: {how_to_install('bus-chain')}"
        raise ImportError(text) from error
    return substrateinterface


def split_domains(text: str) -> tuple[str, ...]:
    """Return the domains in a twin's text on the chain, each once.

    Anybody may write any text there: parts that are not a host name are left out, since no relay
    could be reached under them. The reference relay would take an empty text for a domain.
    """
    found: dict[str, None] = {}
    for part in text.split(MARK):
        try:
            found[parse_domain(part)] = None
        except ValueError:  # not our error, and the other domains may be valid
            continue
    return tuple(found)[:MAX_RELAYS]


def _bytes_of(value: str) -> bytes:
    """Return the bytes of a value, which the client shows as text if they are valid UTF-8."""
    return bytes.fromhex(value[2:]) if value.startswith("0x") else value.encode()


class ChainTwins(TwinDirectory):
    """Look up twins on one node; connects on first use.

    The deadline bounds the wait for other threads; the node itself may be silent for 12 seconds at
    a time.

    Args:
        url: the ``ws://`` or ``wss://`` address of the node.

    Raises:
        ImportError: substrate-interface is not installed.
    """

    def __init__(self, url: str) -> None:
        self.name = url
        self._client = _client()
        self._lock = threading.Lock()
        self._node: Any = None

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None`` if the chain has none with that number."""
        return self._ask(lambda node: _twin(node, twin_id), deadline)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Return the twin of an account, or ``None`` if the chain has none."""

        def look(node: Any) -> Twin | None:
            number = node.query(MODULE, "TwinIdByAccountID", [f"0x{account.hex()}"]).value
            return _twin(node, number) if number else None

        return self._ask(look, deadline)

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        """Write to the chain, paid for by the identity's account; blocks until a block includes it.

        Raises:
            TwinsUnavailable: the node could not be asked.
            BusError: code 500; the chain refused.
        """
        arguments = {
            "relay": MARK.join(sorted(relays)),
            "pk": None if pk is None else f"0x{pk.hex()}",
        }

        def write(node: Any) -> str | None:
            call = node.compose_call(MODULE, "update_twin", arguments)
            receipt = node.submit_extrinsic(_signed(node, call, identity), wait_for_inclusion=True)
            return None if receipt.is_success else str(receipt.error_message)

        refusal = self._ask(write, deadline)
        if refusal is not None:
            raise BusError(FAILED, f"{self.name} refused to update the twin: {refusal}")
        return True

    def close(self) -> None:
        """Close the connection, after the look-up in progress."""
        with self._lock:
            self._drop_locked()

    def _ask(self, question: Callable[[Any], _Result], deadline: Deadline) -> _Result:
        if not self._lock.acquire(timeout=deadline.park_seconds()):
            raise TwinsUnavailable(f"{self.name} was busy with other lookups until the deadline")
        try:
            if self._node is None:
                self._node = self._client.SubstrateInterface(
                    url=self.name, ws_options={"timeout": SILENCE}, auto_reconnect=False
                )
            return question(self._node)
        except Exception as failure:
            self._drop_locked()
            raise TwinsUnavailable(f"{self.name} cannot be queried: {failure!r}") from failure
        finally:
            self._lock.release()

    def _drop_locked(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.close()


def _twin(node: Any, number: int) -> Twin | None:
    record = node.query(MODULE, "Twins", [number]).value
    if record is None:
        return None
    relay = record.get("relay")
    pk = record.get("pk")
    return Twin(
        number,
        parse_account(record["account_id"]),
        split_domains(_bytes_of(relay).decode(errors="replace")) if relay else (),
        _bytes_of(pk) if pk else None,
    )


def _signed(node: Any, call: Any, identity: Identity) -> Any:
    """Return a call signed by the identity, without giving its secret to the client."""
    nonce = node.get_account_nonce(identity.address) or 0
    payload = node.generate_signature_payload(call=call, nonce=nonce)
    signature = identity.sign(bytes(payload.data))[1:]
    client = _client()
    crypto_type = getattr(client.KeypairType, identity.key_type.name)
    public = client.Keypair(public_key=identity.account, crypto_type=crypto_type)
    return node.create_signed_extrinsic(call, public, nonce=nonce, signature=signature)
