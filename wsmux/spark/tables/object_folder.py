"""Keep the files of tables as objects of S3, or of what speaks its protocol.

An object is there whole or not at all, and is safe once the store has answered. ``create`` is a
conditional put (``If-None-Match: *``), which the store does for one of all who try: so any number
of servers, on any hosts, may commit to one table. No lock excludes them from each other.

A request whose answer is lost may have been done. ``create`` asks again, and takes what it finds
for its own if it is the same to the byte: entries of a log never are, but for their writer.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from ...config import MIB
from ...rpc import RiverError
from ...runtime.backoff import Backoff
from ...runtime.clock import monotonic
from ...runtime.deadline import Deadline
from ...runtime.lazy_imports import obstore, pa
from ..errors import hide, one_line
from ..protocol import Code, refusal
from ..store.directory import LAYOUT, MARKER, check_inside, check_layout
from ..store.schemas import first_line
from .file_lock import ThreadLock
from .folder import Folder, Mark

__all__ = ["MIN_TTL", "ObjectFolder", "open_objects"]

# Seconds that a request is repeated for while the store does not answer, or refuses for a while;
# less than a client waits for its call.
PATIENCE = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

# Seconds that an answer may take.
ANSWER = 30.0

# Bytes that are gathered for one request of an upload, the least that S3 takes, and how many
# requests of an upload there are at once: so much memory has each file that is written.
CHUNK = 5 * MIB
UPLOADS = 2

# Requests at once when a table is opened, each of which gets an entry of the log.
READERS = 16

# Seconds that a request may still be on its way after its sender gave up: until then nothing is
# removed by who does not know what became of it, nor sooner by sweeps.
MIN_TTL = 600.0

_SECRET = re.compile(r"secret|token|password|sse_customer", re.IGNORECASE)
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>")
_STATUS = re.compile(r"status code: ([0-9]{3})")


class ObjectFolder(Folder):
    """Keep files as objects whose keys begin with a prefix.

    Every request is repeated for ``PATIENCE`` seconds. Errors are STORE_FAILED, with what to do.

    Args:
        store: of ``obstore``, for the whole bucket. bucket, prefix: where.
        options: what delta-rs needs to open a table here.
    """

    locks = False
    far = True
    open_files = 8  # each needs CHUNK bytes more than a local one

    def __init__(self, store: Any, bucket: str, prefix: str, options: Mapping[str, str]) -> None:
        self._store = store
        self._bucket = bucket
        self._prefix = prefix
        self.address = f"s3://{bucket}/{prefix}"
        self.options: Mapping[str, str] = options
        self._seen = False
        self._doubt = -MIN_TTL
        self._mutex = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def __repr__(self) -> str:
        return f"<ObjectFolder {self.address}>"  # and no options, which hold secrets

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if name else self._prefix

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise what tells what to do, and no secret, for what the store says."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._failed(error) from None
            raise FileNotFoundError(self.address) from None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> RiverError:
        told = str(error)
        code, status = _CODE.search(told), _STATUS.search(told)
        said = code[1] if code else status[1] if status else ""
        if said == "NoSuchBucket":
            text = f"there is no bucket {self._bucket}: make it, or name another one"
        elif said in ("PermanentRedirect", "AuthorizationHeaderMalformed", "301"):
            text = f"bucket {self._bucket} is in another region ({said}): set AWS_REGION"
        elif status and status[1] in ("401", "403"):
            text = (
                f"{self.address} refused the credentials ({said}): set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY of who may list, read, write and delete there"
            )
        elif "169.254.169.254" in told:
            text = (
                "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run "
                f"it where a role may use {self.address}"
            )
        else:
            shown = one_line(first_line(Exception(_hidden(told, self.options))))
            text = f"{self.address} cannot be used, see that it can be reached: {shown}"
        return refusal(Code.STORE_FAILED, text)

    # The folder

    def below(self, name: str) -> ObjectFolder:
        return ObjectFolder(self._store, self._bucket, self._key(name), self.options)

    def identity(self, shown: str) -> object | None:
        # One of its name that was made anew is told by the entries of its log.
        self._seen = self._seen or any(self._listed(""))
        return self.address if self._seen else None

    def is_folder(self, name: str, shown: str) -> bool:
        return True  # a store has none: what is not in it is not there

    def make(self, name: str = "", *, safe: bool = False) -> None:
        if not name:
            self._seen = True

    def make_partition(self, name: str, shown: str) -> None:
        """Do nothing: there are no folders."""

    def _listed(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Yield what is known of all objects in a folder, however deep."""
        with self._asking():
            for some in obstore.list(self._store, self._key(name)):
                yield from some

    def names(self, name: str = "") -> list[str]:
        with self._asking():
            found = obstore.list_with_delimiter(self._store, self._key(name))
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return [path.rpartition("/")[2] for path in paths]

    # Files

    def mark(self, name: str) -> Mark | None:
        try:
            with self._asking():
                return _mark(obstore.head(self._store, self._key(name)))
        except FileNotFoundError:
            return None

    def size(self, name: str, shown: str) -> int:
        check_inside(name, shown)
        return self._size(name)

    def _size(self, name: str) -> int:
        with self._asking():
            return int(obstore.head(self._store, self._key(name))["size"])

    def read(self, name: str) -> tuple[bytes, Mark]:
        with self._asking():
            found = obstore.get(self._store, self._key(name))
            return bytes(found.bytes()), _mark(found.meta)

    def read_all(self, names: Sequence[str]) -> Iterator[tuple[bytes, Mark]]:
        with ThreadPoolExecutor(READERS) as readers:
            yield from readers.map(self.read, names)

    def read_object(self, name: str, shown: str) -> dict[str, Any] | None:
        try:
            values = json.loads(self.read(name)[0])
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise refusal(Code.CORRUPT, f"{shown} is damaged: {error}") from error
        if not isinstance(values, dict):
            raise refusal(Code.CORRUPT, f"{shown} is damaged: it is not an object")
        return values

    def put(self, name: str, data: bytes, *, safe: bool = True, beside: str | None = None) -> None:
        with self._asking():
            obstore.put(self._store, self._key(name), data, use_multipart=False)
        if beside is not None and self.mark(beside) is None:
            self.remove(name)
            raise FileNotFoundError(beside)

    def touch(self, name: str) -> None:
        self.put(name, b"")

    def create(self, name: str, data: bytes) -> bool:
        deadline, backoff = Deadline(PATIENCE), Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                obstore.put(self._store, self._key(name), data, mode="create", use_multipart=False)
                return True
            except obstore.exceptions.AlreadyExistsError as error:
                failed: Exception = error
                try:
                    return self.read(name)[0] == data  # perhaps this is not the first request
                except FileNotFoundError:
                    pass  # two conditional puts have hindered each other, and neither was done
            except (obstore.exceptions.BaseError, OSError) as error:
                failed = error
                status = _STATUS.search(str(error))
                if status is not None and status[1][0] in "34":
                    raise self._failed(error) from None  # it was not done, and will not be
            if deadline.expired():
                self._doubt = monotonic()
                raise self._failed(failed) from None
            time.sleep(min(backoff.next(), deadline.remaining() or 0.0))

    def in_doubt(self) -> bool:
        return monotonic() - self._doubt < MIN_TTL

    def writer(self, name: str) -> Any:
        return pa.PythonFile(_Upload(self, self._store, self._key(name)), mode="w")

    def seal(self, name: str) -> int:
        return self._size(name)

    def reader(self, name: str, shown: str) -> Any:
        size = self.size(name, shown)
        return pa.PythonFile(_Ranges(self, self._store, self._key(name), size), mode="r")

    def remove(self, name: str) -> None:
        with self._asking():
            obstore.delete(self._store, self._key(name))

    # What is staged

    def last_written(self, name: str) -> float:
        times: list[float] = [each["last_modified"].timestamp() for each in self._listed(name)]
        if not times:
            raise FileNotFoundError(name)
        return max(times)

    def take(self, name: str, marker: str) -> str | None:
        self.remove(f"{name}/{marker}")
        return name if any(self._listed(name)) else None

    def taken(self, name: str) -> list[str]:
        return []  # it has its old name, under which it is swept again

    def remove_all(self, name: str) -> bool:
        keys = [each["path"] for each in self._listed(name)]
        with self._asking():
            obstore.delete(self._store, keys)
        return True

    # Upkeep

    def set_aside(self, name: str, folder: str) -> str:
        text = f"{self.address}/{name} is not whole, which no crash leaves here: see what wrote it,"
        raise refusal(Code.CORRUPT, f"{text} and remove it")

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: what the store has answered is safe."""

    def tidy(self, name: str, before: float) -> None:
        """Do nothing: no try leaves anything."""

    def remove_empty(self, folders: Iterable[str] | None = None) -> None:
        """Do nothing: there are no folders."""

    def lock(self, name: str, shown: str, timeout: float) -> ThreadLock:
        with self._mutex:
            return ThreadLock(shown, timeout, self._locks.setdefault(name, threading.Lock()))


class _Upload:
    """Write an object by requests of ``CHUNK`` bytes; who writes waits while ``UPLOADS`` run."""

    def __init__(self, folder: ObjectFolder, store: Any, key: str) -> None:
        self._folder = folder
        self._written = 0
        self.closed = False
        with folder._asking():
            self._file = obstore.open_writer(store, key, buffer_size=CHUNK, max_concurrency=UPLOADS)

    def write(self, data: Any) -> int:
        with self._folder._asking():
            self._file.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Do nothing: it goes in requests of one size."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._folder._asking():
                self._file.close()


class _Ranges:
    """Read an object, by a request for each range."""

    closed = False

    def __init__(self, folder: ObjectFolder, store: Any, key: str, size: int) -> None:
        self._folder = folder
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        with self._folder._asking():
            data = obstore.get_range(self._store, self._key, start=self._at, length=length)
        self._at += len(data)
        return bytes(data)

    def close(self) -> None:
        self.closed = True


def open_objects(address: str, options: Mapping[str, str] | None = None) -> ObjectFolder:
    """Return the folder of all datasets of a store in S3; make it a store if nothing is there.

    Args:
        address: ``s3://BUCKET/PREFIX``. options: as delta-rs has them, such as ``aws_region``;
            environment variables of these names count too.

    Raises:
        ValueError: the address or an option is wrong. RiverError: STORE_FAILED, if it cannot be
            used; CORRUPT, if it holds something else. ImportError: ``obstore`` is not there.
    """
    parts = urlsplit(address)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    odd = not bucket or "@" in bucket or parts.query or parts.fragment
    if parts.scheme != "s3" or odd or any(p in ("", ".", "..") for p in prefix.split("/")):
        shown = one_line(address.rpartition("@")[2])  # what is before it may be a secret
        raise ValueError(f"expected s3://BUCKET/PREFIX, as text, not {shown!r:.200}")
    told = {str(name).lower(): str(value) for name, value in (options or {}).items()}
    if told.setdefault("aws_conditional_put", "etag") != "etag":
        raise ValueError("aws_conditional_put must be etag: commits need conditional puts")
    try:
        store = obstore.store.S3Store(
            bucket,
            config={"timeout": f"{ANSWER:g}s", **told},
            retry_config={
                "max_retries": 1000,
                "retry_timeout": timedelta(seconds=PATIENCE),
                "backoff": {
                    "init_backoff": timedelta(seconds=FIRST_PAUSE),
                    "max_backoff": timedelta(seconds=LONGEST_PAUSE),
                    "base": 2.0,
                },
            },
        )
    except (obstore.exceptions.BaseError, ValueError) as error:
        text = f"the storage options are wrong: {first_line(Exception(_hidden(str(error), told)))}"
        raise ValueError(text) from None
    root = ObjectFolder(store, bucket, prefix, told)
    # Before the marker: another server may make it a store now, and the marker comes first then.
    names = root.names()
    marker = root.read_object(MARKER, MARKER)
    if marker is None:
        if any(name != "datasets" for name in names):
            text = f"{root.address} holds other things and is no store: name an empty prefix"
            raise refusal(Code.CORRUPT, text)
        root.create(MARKER, json.dumps({"layout": LAYOUT}).encode())
    else:
        check_layout(marker, f"{root.address}/{MARKER}")
    return root.below("datasets")


def _hidden(text: str, options: Mapping[str, str]) -> str:
    """Return a text without the values of secret options, and of such environment variables."""
    known = [*options.items(), *(each for each in os.environ.items() if each[0][:4] == "AWS_")]
    for name, value in known:
        if _SECRET.search(name):
            text = hide(text, value)
    return text


def _mark(meta: Mapping[str, Any]) -> Mark:
    return Mark(meta["e_tag"], int(meta["last_modified"].timestamp() * 1e9), int(meta["size"]))
