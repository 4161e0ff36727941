"""Encrypt payloads between two twins: ECDH over secp256k1, then AES-256-GCM.

The shared key is SHA-256 of the x coordinate of the shared point. A payload is sent as a random
nonce of 12 bytes, the ciphertext and a tag of 16 bytes. Command, schema, tags and addresses stay
readable; the envelope's signature covers them.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from hashlib import sha256

from ...runtime.hints import how_to_install

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError as error:
    raise ImportError(f"wsmux.bus needs cryptography: {how_to_install('bus')}") from error

from ..errors import E2E_FAILURE, BusError

__all__ = ["PUBLIC_BYTES", "SHORTEST_CIPHER", "Box"]

SECRET_BYTES = 32
PUBLIC_BYTES = 33
NONCE_BYTES = 12
TAG_BYTES = 16

# An empty payload, encrypted.
SHORTEST_CIPHER = NONCE_BYTES + TAG_BYTES

# Peers whose shared keys are cached; a key takes a millisecond to compute and about 1 KiB to keep.
MAX_PEERS = 1024


class Box:
    """Encrypt for other twins and decrypt their payloads; may be used by any number of threads.

    Args:
        secret: the private key, 32 bytes.

    Raises:
        ValueError: it is not a private key of secp256k1.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
        try:
            self._key = ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP256K1())
        except ValueError:  # its text might reveal the secret
            raise ValueError("the secret is not a private key of secp256k1: use another") from None
        self._public = self._key.public_key().public_bytes(
            Encoding.X962, PublicFormat.CompressedPoint
        )
        self._lock = threading.Lock()
        self._shared: OrderedDict[bytes, AESGCM] = OrderedDict()

    def __repr__(self) -> str:
        return f"Box(public={self._public.hex()})"

    @property
    def public(self) -> bytes:
        """The public key, a compressed point of 33 bytes."""
        return self._public

    def seal(self, plain: bytes, to_public: bytes) -> bytes:
        """Encrypt a payload that only the holder of ``to_public`` can read.

        Raises:
            BusError: code 106; the key is not a point of the curve.
        """
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._shared_with(to_public).encrypt(nonce, plain, None)

    def open(self, cipher: bytes, from_public: bytes) -> bytes:
        """Decrypt what the holder of ``from_public`` encrypted for this box.

        Raises:
            BusError: code 106; it is too short, was encrypted with other keys or changed, or the
                key is not a point of the curve.
        """
        if len(cipher) < SHORTEST_CIPHER:
            raise BusError(
                E2E_FAILURE, f"a cipher has at least {SHORTEST_CIPHER} bytes, not {len(cipher)}"
            )
        try:
            return self._shared_with(from_public).decrypt(
                cipher[:NONCE_BYTES], cipher[NONCE_BYTES:], None
            )
        except InvalidTag as failure:
            raise BusError(
                E2E_FAILURE,
                "the ciphertext was changed, or made with other keys than those on record",
            ) from failure

    def _shared_with(self, public: bytes) -> AESGCM:
        """Return the cipher shared with a peer, cached."""
        with self._lock:
            found = self._shared.get(public)
            if found is not None:
                self._shared.move_to_end(public)
                return found
        made = self._agree(public)
        with self._lock:
            self._shared[public] = made
            if len(self._shared) > MAX_PEERS:
                self._shared.popitem(last=False)
        return made

    def _agree(self, public: bytes) -> AESGCM:
        if len(public) != PUBLIC_BYTES:
            raise BusError(E2E_FAILURE, f"a public key has {PUBLIC_BYTES} bytes, not {len(public)}")
        try:
            point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), public)
        except ValueError as failure:
            raise BusError(
                E2E_FAILURE, f"the public key {public.hex()} is not a point of secp256k1"
            ) from failure
        return AESGCM(sha256(self._key.exchange(ec.ECDH(), point)).digest())
