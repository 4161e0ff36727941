"""Derive identities from mnemonics and seeds, sign with them, and verify signatures.

A signature is one byte for the scheme, ``s`` for sr25519 or ``e`` for ed25519, and 64 bytes. The
seed of a mnemonic is Substrate's: stretched from the entropy, not from the words as in BIP-39. A
derivation path changes only the signing key; the encryption key is always made from the seed.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b, pbkdf2_hmac
from typing import Any, NoReturn, Self

from ...runtime.hints import how_to_install

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from mnemonic import Mnemonic
except ImportError as error:
    text = f"wsmux.bus needs cryptography and mnemonic: {how_to_install('bus')}"
    raise ImportError(text) from error

from .e2e import Box
from .ss58 import ACCOUNT_BYTES, ss58_encode

__all__ = ["SIGNATURE_BYTES", "Identity", "KeyType", "verify"]

SIGNATURE_BYTES = 65
SEED_BYTES = 32
STRETCHING = 2048

# Bits of a new mnemonic, 12 words.
STRENGTH = 128

# Substrate's published words for tests; a secret that is only a path derives from them.
DEV_WORDS = "bottom drive obey lake curtain smoke basket hold race lonely fit walk"

# Characters of a path. Longer paths are not in use, and SCALE encodes longer texts differently.
MAX_PATH = 1024

# Bytes of a junction of a path, and the prefix that ed25519 hashes with seed and junction.
JUNCTION_BYTES = 32
ED25519_MARK = b"\x2cEd25519HDKD"

# Accounts for which anybody can sign: the points of small order of ed25519 in all encodings,
# ignoring the first bit of the last byte. The first one is also that of sr25519.
_ANYBODY = frozenset(
    bytes.fromhex(point)
    for point in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)

_HEX = re.compile(r"0x[0-9a-fA-F]{64}")


class KeyType(StrEnum):
    """Name a signature scheme."""

    ED25519 = "ed25519"
    SR25519 = "sr25519"

    @property
    def prefix(self) -> bytes:
        """The byte that precedes a signature."""
        return self[0].encode()


def _key_type(given: str) -> KeyType:
    try:
        return KeyType(given)
    except ValueError:
        types = " or ".join(repr(str(each)) for each in KeyType)
        raise ValueError(f"expected the key type {types}, got {given!r}") from None


def _sr25519() -> Any:
    try:
        import sr25519  # an extra of its own
    except ImportError as error:
        text = f"keys of type sr25519 need py-sr25519-bindings: {how_to_install('bus-sr25519')}"
        raise ImportError(text) from error
    return sr25519


def _seed_of(secret: str) -> bytes:
    """Return the 32-byte seed of a mnemonic or hexadecimal text."""
    if secret.startswith("0x"):
        if not _HEX.fullmatch(secret):
            raise ValueError("a seed must be 0x and 64 hexadecimal digits")
        return bytes.fromhex(secret[2:])
    try:
        entropy = bytes(Mnemonic("english").to_entropy(secret.split()))
    except (ValueError, LookupError):  # their texts contain words of the secret
        raise ValueError(
            "a mnemonic must be 12, 15, 18, 21 or 24 English words of BIP-39 with a valid checksum"
        ) from None
    return pbkdf2_hmac("sha512", entropy, b"mnemonic", STRETCHING)[:SEED_BYTES]


def _compact(length: int) -> bytes:
    """Encode a length below 2^14 as SCALE does before a text."""
    return bytes((length << 2,)) if length < 64 else (length << 2 | 1).to_bytes(2, "little")


def _junctions(path: str) -> list[bytes]:
    """Return the encoded junctions of a path: numbers as 64 bits, other parts as text."""
    if not path:
        return []
    parts = path[2:].split("//")
    if len(path) > MAX_PATH or any(not part or "/" in part for part in parts):
        raise ValueError(
            f"a derivation path must be '//name', one or more times, up to {MAX_PATH} characters"
        )
    found = []
    for part in parts:
        if part.isascii() and part.isdigit() and int(part) < 2**64:
            junction = int(part).to_bytes(8, "little")
        else:
            text = part.encode()
            junction = _compact(len(text)) + text
        if len(junction) > JUNCTION_BYTES:
            junction = blake2b(junction, digest_size=JUNCTION_BYTES).digest()
        found.append(junction.ljust(JUNCTION_BYTES, b"\0"))
    return found


def _ed25519_pair(
    seed: bytes, junctions: Sequence[bytes]
) -> tuple[bytes, Callable[[bytes], bytes]]:
    for junction in junctions:
        seed = blake2b(ED25519_MARK + seed + junction, digest_size=SEED_BYTES).digest()
    key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), key.sign


def _sr25519_pair(
    seed: bytes, junctions: Sequence[bytes]
) -> tuple[bytes, Callable[[bytes], bytes]]:
    module = _sr25519()
    public, secret = module.pair_from_seed(seed)
    for junction in junctions:
        _, public, secret = module.hard_derive_keypair((junction, public, secret), b"")
    return public, lambda message: module.sign((public, secret), message)


_PAIRS = {KeyType.ED25519: _ed25519_pair, KeyType.SR25519: _sr25519_pair}


class Identity:
    """Hold the keys of one twin; may be used by any number of threads.

    Made by ``generate`` or ``from_secret``.
    """

    def __init__(self, seed: bytes, path: str, key_type: KeyType) -> None:
        self._seed, self._path, self._key_type = seed, path, key_type
        self._account, self._sign = _PAIRS[key_type](seed, _junctions(path))
        self._box = Box(seed)
        self._mnemonic: str | None = None

    @classmethod
    def generate(cls, key_type: KeyType | str = KeyType.ED25519) -> Self:
        """Return a new identity, whose ``mnemonic`` is to be kept; arguments as ``from_secret``."""
        words: str = Mnemonic("english").generate(STRENGTH)
        made = cls.from_secret(words, key_type)
        made._mnemonic = words
        return made

    @classmethod
    def from_secret(cls, text: str, key_type: KeyType | str) -> Self:
        """Return the identity of a secret.

        Args:
            text: a mnemonic, or ``0x`` and 64 hexadecimal digits, with an optional path of hard
                junctions such as ``//name``. A path alone derives from Substrate's words for tests.
            key_type: ``"ed25519"``, or ``"sr25519"``, which needs an extra package.

        Raises:
            ValueError: the secret or the type is invalid. The message contains no secret.
            ImportError: the type is sr25519, and its package is not installed.
        """
        secret, slashes, path = text.strip().partition("//")
        if slashes and not secret:
            secret = DEV_WORDS
        return cls(_seed_of(secret), slashes + path, _key_type(key_type))

    def with_key_type(self, key_type: KeyType | str) -> Self:
        """Return the identity that the same secret has with another type; see ``from_secret``."""
        return type(self)(self._seed, self._path, _key_type(key_type))

    def __repr__(self) -> str:
        return f"Identity({self.address}, {self._key_type})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an identity holds secrets and cannot be pickled: create it where it is used"
        )

    @property
    def mnemonic(self) -> str | None:
        """The words of a generated identity, from which ``from_secret`` makes it again."""
        return self._mnemonic

    @property
    def key_type(self) -> KeyType:
        """The signature scheme."""
        return self._key_type

    @property
    def account(self) -> bytes:
        """The public key for signatures, 32 bytes, by which directories identify the twin."""
        return self._account

    @property
    def address(self) -> str:
        """The account as SS58 text."""
        return ss58_encode(self._account)

    @property
    def e2e_public(self) -> bytes:
        """The public key for encryption, a compressed point of 33 bytes."""
        return self._box.public

    @property
    def secret_box(self) -> Box:
        """The box that encrypts and decrypts for this twin."""
        return self._box

    def derive(self, purpose: bytes) -> bytes:
        """Return a secret of 32 bytes for one purpose, which is always the same."""
        return hmac.digest(self._seed, purpose, "sha256")

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 65 bytes; with sr25519 it differs each time."""
        return self._key_type.prefix + self._sign(message)


def verify(account: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether an account signed a message, by the scheme that the signature names.

    Accounts for which anybody can sign, such as all zeros, have no valid signature; the reference
    peers accept them.

    Raises:
        ImportError: the scheme is sr25519, and its package is not installed.
    """
    if len(account) != ACCOUNT_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    if account[:-1] + bytes((account[-1] & 0x7F,)) in _ANYBODY:
        return False
    prefix, body = signature[:1], signature[1:]
    if prefix == KeyType.SR25519.prefix:
        return _verify_sr25519(account, message, body)
    return prefix == KeyType.ED25519.prefix and _verify_ed25519(account, message, body)


def _verify_sr25519(account: bytes, message: bytes, signature: bytes) -> bool:
    module = _sr25519()
    try:
        return bool(module.verify(signature, message, account))
    except ValueError:  # the account or the signature is not a point
        return False


def _verify_ed25519(account: bytes, message: bytes, signature: bytes) -> bool:
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(account).verify(signature, message)
    except (InvalidSignature, ValueError):  # ValueError if the account is not a point
        return False
    return True
