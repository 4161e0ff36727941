"""Stage a part as a file, with a second one that says it is whole."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..rpc import RiverError
from .files import FileFormat
from .home import Staged
from .lazy import pa
from .log import remove_file, sync_directory, write_new
from .protocol import Code, Receipt, refusal
from .schemas import first_line
from .store import Part

__all__ = ["DirectoryPart", "read_staged"]


class DirectoryPart(Part):
    """Write one part into the directory of its transaction."""

    def __init__(
        self,
        path: Path,
        shown: str,
        partition: int,
        attempt: int,
        file_format: FileFormat,
        schema: Any,
        *,
        sync: bool,
    ) -> None:
        self._path = path
        self._shown = shown
        self._partition = partition
        self._attempt = attempt
        self._sync = sync
        self._rows = 0
        try:
            self._writer = file_format.create(path, schema)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._open = True

    def write(self, batch: Any) -> None:
        try:
            self._writer.write(batch)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._rows += batch.num_rows

    def finish(self, size: int, crc: int) -> Receipt:
        name = self._path.name
        receipt = Receipt(self._partition, self._attempt, self._rows, size, crc, name)
        hidden = self._path.parent / f".{uuid.uuid4().hex}"
        try:
            groups = self._writer.close()
            self._open = False
            if self._sync:
                _sync_file(self._path)
            values = {**receipt.to_json(), "groups": groups}
            write_new(hidden, json.dumps(values).encode(), sync=self._sync)
            os.rename(hidden, f"{self._path}.json")
            if self._sync:
                sync_directory(self._path.parent)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        return receipt

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._writer.abandon()
            remove_file(self._path)

    def _failed(self, error: Exception) -> RiverError:
        """Return the error for what the system or pyarrow said."""
        if isinstance(error, FileNotFoundError) or not self._path.parent.exists():
            text = "the transaction was aborted, or has expired, while it was written"
            return refusal(Code.NO_TXN, text)
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
            return refusal(Code.STORE_FAILED, f"{self._shown}: {error.strerror or error}")
        return refusal(Code.BAD_ARROW, f"{self._shown} cannot be written: {first_line(error)}")


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_staged(values: Mapping[str, Any], shown: str) -> Staged:
    """Return what a part's second file holds.

    Raises:
        RiverError: CORRUPT.
    """
    groups = values.get("groups")
    if not isinstance(groups, list) or not all(type(rows) is int for rows in groups):
        raise refusal(Code.CORRUPT, f"{shown} is damaged: it tells no groups")
    try:
        return Staged(Receipt.of({k: v for k, v in values.items() if k != "groups"}), groups)
    except RiverError as error:
        raise refusal(Code.CORRUPT, f"{shown} is damaged: {error.message}") from error
