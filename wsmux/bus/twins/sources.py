"""Look up twins in files and registrars, with failover and a cache."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...runtime.arguments import strings
from ...runtime.deadline import Deadline
from ..errors import TwinsUnavailable
from ..wire.keys import Identity
from .records import Twin, TwinDirectory, parse_twin

__all__ = ["CachedTwins", "Failover", "FileTwins", "TwinSource", "twins_from"]

# Names a source of twins: the path of a file, or the URL of a registrar or of a node.
TwinSource = str | os.PathLike[str]

# Maximum bytes of a file; enough for a hundred thousand twins.
MAX_FILE = 32 * 1024 * 1024

# Seconds for one directory to answer, and attempts at each of several; as the reference peers.
TRY_SECONDS = 12.0
TRIES_EACH = 2

# Twins kept, and seconds for which they are valid; as the reference peers.
CACHE_SIZE = 500
CACHE_LIFE = 300.0

_Result = TypeVar("_Result")


class _Version(NamedTuple):
    """Identify one version of a file."""

    inode: int
    size: int
    modified: int


class FileTwins(TwinDirectory):
    """Read twins from a JSON file, a list of what ``parse_twin`` takes; read-only.

    The file is read again after a change. To change it, rename a new file over it: a file written
    in place may be read half-written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name: str = os.fspath(path)
        self._path = Path(path)
        self._lock = threading.Lock()
        self._version: _Version | None = None
        self._by_id: dict[int, Twin] = {}
        self._by_account: dict[bytes, Twin] = {}

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None``; blocks only for the disk."""
        with self._lock:
            self._refresh_locked()
            return self._by_id.get(twin_id)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Return the first twin of an account, or ``None``; blocks only for the disk."""
        with self._lock:
            self._refresh_locked()
            return self._by_account.get(account)

    def _refresh_locked(self) -> None:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                version = _Version(found.st_ino, found.st_size, found.st_mtime_ns)
                if version == self._version:
                    return
                data = file.read(MAX_FILE + 1)
        except OSError as failure:
            raise TwinsUnavailable(f"{self.name} cannot be read: {failure.strerror}") from failure
        self._version = None  # until the new content is parsed
        twins = self._parse(data)
        self._by_id = {twin.id: twin for twin in twins}
        self._by_account = {twin.account: twin for twin in reversed(twins)}
        self._version = version

    def _parse(self, data: bytes) -> list[Twin]:
        if len(data) > MAX_FILE:
            raise TwinsUnavailable(f"{self.name} has more than {MAX_FILE} bytes")
        try:
            records = json.loads(data)
        except (ValueError, RecursionError) as failure:
            raise TwinsUnavailable(f"{self.name} is not JSON: {failure}") from failure
        if not isinstance(records, list):
            raise TwinsUnavailable(f"{self.name} is not a list of twins")
        twins: dict[int, Twin] = {}
        for position, record in enumerate(records):
            try:
                twin = parse_twin(record)
            except ValueError as failure:
                raise TwinsUnavailable(f"{self.name}, entry {position}: {failure}") from failure
            if twin.id in twins:
                raise TwinsUnavailable(
                    f"{self.name}, entry {position}: twin {twin.id} is listed twice"
                )
            twins[twin.id] = twin
        return list(twins.values())


class Failover(TwinDirectory):
    """Ask one of several directories, and the next one when it fails.

    The directory that answered last is asked first. A look-up makes two attempts per directory,
    round robin, of up to 12 seconds each.
    """

    def __init__(self, directories: Sequence[TwinDirectory]) -> None:
        if not directories:
            raise ValueError("name at least one directory of twins")
        self._directories = tuple(directories)
        self.name: str = ", ".join(directory.name for directory in directories)
        self._lock = threading.Lock()
        self._held = 0

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None`` if the directory that answered has none with that number."""
        return self._ask(lambda directory, limit: directory.get(twin_id, limit), deadline)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Return the twin of an account, or ``None`` if the directory that answered has none."""
        return self._ask(lambda directory, limit: directory.find(account, limit), deadline)

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        """Write to the directory that answered last, or the next one available."""
        wanted = tuple(relays)
        return self._ask(
            lambda directory, limit: directory.update(identity, wanted, pk, limit), deadline
        )

    def close(self) -> None:
        """Close every directory."""
        for directory in self._directories:
            directory.close()

    def _ask(
        self, question: Callable[[TwinDirectory, Deadline], _Result], deadline: Deadline
    ) -> _Result:
        failure: TwinsUnavailable | None = None
        for _ in range(TRIES_EACH * len(self._directories)):
            if deadline.expired():
                break
            held = self._held
            try:
                return question(self._directories[held], _one_try(deadline))
            except TwinsUnavailable as error:
                failure = error
                self._leave(held)
        last = "no time was left" if failure is None else failure.message
        raise TwinsUnavailable(f"none of {self.name} answered: {last}") from failure

    def _leave(self, failed: int) -> None:
        """Switch to the next directory, unless another thread already did."""
        with self._lock:
            if self._held == failed:
                self._held = (failed + 1) % len(self._directories)


class CachedTwins(TwinDirectory):
    """Cache the twins that a slow directory returned.

    Threads that miss the same twin at once share one look-up, and its failure; each waits until its
    own deadline. A look-up takes at most 12 seconds, unless ``Failover`` tries several times: what
    hangs does not keep later threads from asking again. Twins that were not found are looked up
    again.

    Args:
        directory: the directory to cache.
        size: the maximum number of twins; the least recently used is dropped.
        life: seconds for which a twin is cached.
        clock: returns monotonic seconds.

    Attributes:
        misses: the number of look-ups in the directory.
    """

    def __init__(
        self,
        directory: TwinDirectory,
        size: int = CACHE_SIZE,
        life: float = CACHE_LIFE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._tries_itself = isinstance(directory, Failover)
        self.name: str = directory.name
        self.misses: int = 0
        self._size, self._life, self._clock = size, life, clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Twin, float]] = OrderedDict()
        self._asked: dict[int, Future[Twin | None]] = {}

    @property
    def entries(self) -> int:
        """The number of cached twins."""
        return len(self._kept)

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None``, from the cache or the directory."""
        with self._lock:
            kept = self._kept.get(twin_id)
            if kept is not None and self._clock() < kept[1]:
                self._kept.move_to_end(twin_id)
                return kept[0]
            other = self._asked.get(twin_id)
            if other is None:
                mine = self._asked[twin_id] = Future[Twin | None]()
                self.misses += 1
        if other is not None:
            return self._join(other, twin_id, deadline)
        return self._lead(mine, twin_id, deadline)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Look up the twin of an account in the directory, and cache it."""
        twin = self._directory.find(account, self._limited(deadline))
        if twin is not None:
            with self._lock:
                self._keep_locked(twin)
        return twin

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        """Write to the directory, and drop the twin from the cache."""
        try:
            return self._directory.update(identity, relays, pk, deadline)
        finally:
            with self._lock:
                for number, (twin, _) in list(self._kept.items()):
                    if twin.account == identity.account:
                        del self._kept[number]

    def close(self) -> None:
        """Close the directory."""
        self._directory.close()

    def _lead(self, answer: Future[Twin | None], twin_id: int, deadline: Deadline) -> Twin | None:
        try:
            twin = self._directory.get(twin_id, self._limited(deadline))
        except BaseException as failure:
            with self._lock:
                del self._asked[twin_id]
            answer.set_exception(failure)
            raise
        with self._lock:
            del self._asked[twin_id]
            if twin is None:
                self._kept.pop(twin_id, None)
            else:
                self._keep_locked(twin)
        answer.set_result(twin)
        return twin

    def _join(self, answer: Future[Twin | None], twin_id: int, deadline: Deadline) -> Twin | None:
        try:
            failure = answer.exception(deadline.remaining())
        except TimeoutError as late:
            raise TwinsUnavailable(f"{self.name} did not return twin {twin_id} in time") from late
        if failure is not None:  # raised again, since the other thread's traceback is its own
            raise TwinsUnavailable(getattr(failure, "message", str(failure))) from failure
        return answer.result()

    def _limited(self, deadline: Deadline) -> Deadline:
        return deadline if self._tries_itself else _one_try(deadline)

    def _keep_locked(self, twin: Twin) -> None:
        self._kept[twin.id] = (twin, self._clock() + self._life)
        self._kept.move_to_end(twin.id)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)


def _one_try(deadline: Deadline) -> Deadline:
    """Return until when one directory has to answer."""
    left = deadline.remaining()
    return Deadline(TRY_SECONDS if left is None else min(left, TRY_SECONDS))


def _source(text: str) -> TwinDirectory:
    scheme, separator, _ = text.partition("://")
    if not separator:
        return FileTwins(text)
    if scheme in ("http", "https"):
        from .http import HttpTwins  # a file needs no HTTP client

        return HttpTwins(text)
    if scheme in ("ws", "wss"):
        from .chain import ChainTwins  # an extra of its own

        return ChainTwins(text)
    raise ValueError(f"expected a file, http(s):// or ws(s):// URL of twins, got {text[:80]!r}")


def twins_from(
    given: Sequence[TwinSource], size: int = CACHE_SIZE, life: float = CACHE_LIFE
) -> TwinDirectory:
    """Return the directory that paths and URLs name.

    A path is a JSON file, ``http`` a registrar and ``ws`` a node of the chain; for the latter two,
    ``size`` twins are cached for ``life`` seconds. Several sources are combined by ``Failover``.
    Nothing is opened yet.

    Raises:
        ValueError: the list is empty, or an item is neither a path nor a supported URL.
        TypeError: ``given`` is not a collection of strings and paths.
        ImportError: a required package is not installed.
    """
    texts: Any = given
    if isinstance(given, list | tuple):
        texts = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in given]
    sources = [_source(text) for text in strings("twins", texts, "twins.json")]
    directory = sources[0] if len(sources) == 1 else Failover(sources)
    if all(isinstance(source, FileTwins) for source in sources):
        return directory
    return CachedTwins(directory, size, life)
