"""Keep the words of a new twin in a file, and enter it in a file of twins."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import FAILED, BusError
from ..wire.keys import Identity
from .records import Twin, parse_domain, parse_twin, twin_record

__all__ = ["add_to_file", "keep_secret"]


def keep_secret(path: Path, secret: str) -> None:
    """Write a secret to a new file that only its owner can read, whole or not at all.

    Raises:
        FileExistsError: there is a file already; it is left alone.
        OSError: the file cannot be written.
    """
    temporary = _written(path, f"{secret}\n")
    try:
        os.link(temporary, path)  # unlike a rename, it never replaces a file
    finally:
        temporary.unlink()


def add_to_file(path: Path, identity: Identity, relays: Iterable[str]) -> Twin:
    """Add a twin with the next free number to a JSON file of twins, which is made if missing.

    The file is replaced in one step. A lock file beside it, ``FILE.lock``, keeps others from adding
    a twin meanwhile; one that was left by a crash is to be removed.

    Raises:
        BusError: code 500; the file is not a list of twins, or has one of this account.
        FileExistsError: another twin is being added.
        OSError: the file cannot be read or written.
    """
    domains = tuple(parse_domain(relay) for relay in relays)
    lock = path.with_name(f"{path.name}.lock")
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        records = _records(path)
        known = [parse_twin(record) for record in records]
        if any(twin.account == identity.account for twin in known):
            raise BusError(FAILED, f"{path} has a twin of the account {identity.address}")
        number = max((twin.id for twin in known), default=0) + 1
        made = Twin(number, identity.account, domains, identity.e2e_public)
        mode = path.stat().st_mode & 0o777 if records else 0o644
        temporary = _written(path, json.dumps([*records, twin_record(made)], indent=2) + "\n")
        temporary.chmod(mode)
        temporary.replace(path)
    except ValueError as error:
        raise BusError(FAILED, f"{path} is not a list of twins: {error}") from error
    finally:
        lock.unlink()
    return made


def _records(path: Path) -> list[object]:
    try:
        records = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    if not isinstance(records, list):
        raise ValueError("it is not a list")
    return records


def _written(path: Path, text: str) -> Path:
    """Write a temporary file beside another one, readable by its owner alone, and return it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return Path(name)
