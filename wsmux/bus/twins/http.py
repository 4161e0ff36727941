"""Look up twins at a registrar over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from http.cookiejar import DefaultCookiePolicy

from ...runtime.hints import how_to_install

try:
    import requests
except ImportError as error:
    raise ImportError(f"wsmux.bus needs requests: {how_to_install('bus')}") from error

from ...runtime.deadline import Deadline
from ..errors import FAILED, BusError, TwinsUnavailable
from ..wire.keys import Identity
from .entries import entry_record, is_signed, make_entry, parse_entry
from .records import SILENCE, Twin, TwinDirectory, parse_twin

__all__ = ["HttpTwins"]

# Maximum bytes of one record.
MAX_RECORD = 64 * 1024

# Bytes read at a time. The timeout applies to each byte, and the deadline is checked only between
# reads, so with a larger chunk a slow registrar could hold a thread for long.
CHUNK = 1


class HttpTwins(TwinDirectory):
    """Look up twins with ``GET URL/twins/ID``, which returns a JSON twin or 404.

    A signed entry, as ``wsmux registrar`` serves it, is checked: one that its account has not
    signed counts as a failure. Such a registrar takes updates; others are read-only.

    The JSON is what ``parse_twin`` takes. Accounts are looked up with a query of this package's
    own, ``GET URL/twins?account=0x...``. A redirect counts as a failure. The deadline, and 12
    seconds, bound connecting, waiting for the head, and waiting for each byte of the record; no
    byte is read after the deadline.
    """

    def __init__(self, url: str) -> None:
        self.name: str = url.rstrip("/")
        self._session = requests.Session()
        # Threads share the session, and cookies would be its only mutable state.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        """Return a twin, or ``None`` if the registrar has none with that number."""
        twin = self._ask(f"/twins/{twin_id}", deadline)
        if twin is not None and twin.id != twin_id:
            raise TwinsUnavailable(f"{self.name} returned twin {twin.id} when asked for {twin_id}")
        return twin

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        """Return the twin of an account, or ``None`` if the registrar has none."""
        twin = self._ask(f"/twins?account=0x{account.hex()}", deadline)
        if twin is not None and twin.account != account:
            raise TwinsUnavailable(f"{self.name} returned another account than it was asked for")
        return twin

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        """Write the identity's own entry; ``False`` if the registrar takes none."""
        return self.register(identity, relays, pk, deadline) is not None

    def register(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> Twin | None:
        """Write the identity's own entry, which claims a number if it is the first.

        Returns:
            The twin; ``None`` if the registrar takes no entries.

        Raises:
            TwinsUnavailable: the registrar could not be asked.
            BusError: code 500; the registrar refused.
        """
        entry = make_entry(identity, relays, pk, time.time_ns() // 1_000_000)
        record = entry_record(entry)
        del record["id"]
        try:
            with self._session.post(
                f"{self.name}/twins",
                json=record,
                timeout=self._left(deadline),
                stream=True,
                allow_redirects=False,
            ) as answer:
                data = self._body(answer, deadline)
        except requests.RequestException as failure:
            raise TwinsUnavailable(f"{self.name} cannot be asked: {failure}") from failure
        if answer.status_code in (404, 405, 501):
            return None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise TwinsUnavailable(f"{self.name} answered with status {answer.status_code}")
        if answer.status_code not in (200, 201):
            text = data.decode(errors="replace").strip()
            raise BusError(FAILED, f"{self.name} refused the entry: {text}")
        twin = self._parse(data)
        if twin._replace(id=1) != entry.twin:
            raise TwinsUnavailable(f"{self.name} returned another entry than it was sent")
        return twin

    def close(self) -> None:
        """Close idle connections."""
        self._session.close()

    def _ask(self, path: str, deadline: Deadline) -> Twin | None:
        try:
            with self._session.get(
                self.name + path, timeout=self._left(deadline), stream=True, allow_redirects=False
            ) as answer:
                if answer.status_code == 404:
                    return None
                if answer.status_code != 200:
                    raise TwinsUnavailable(f"{self.name} answered with status {answer.status_code}")
                data = self._body(answer, deadline)
        except requests.RequestException as failure:
            raise TwinsUnavailable(f"{self.name} cannot be queried: {failure}") from failure
        return self._parse(data)

    def _parse(self, data: bytes) -> Twin:
        try:
            record = json.loads(data)
            twin = parse_twin(record)
            signed = "signature" not in record or is_signed(parse_entry(record))
        except (ValueError, RecursionError) as failure:
            raise TwinsUnavailable(f"{self.name} returned no twin: {failure}") from failure
        except ImportError as failure:
            raise TwinsUnavailable(f"{self.name}: {failure}") from failure
        if not signed:
            raise TwinsUnavailable(f"{self.name} returned twin {twin.id} with a wrong signature")
        return twin

    def _body(self, answer: requests.Response, deadline: Deadline) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in answer.iter_content(CHUNK):
            self._left(deadline)
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_RECORD:
                raise TwinsUnavailable(
                    f"{self.name} returned a twin in more than {MAX_RECORD} bytes"
                )
        return b"".join(chunks)

    def _left(self, deadline: Deadline) -> float:
        remaining = deadline.remaining()
        if remaining == 0:
            raise TwinsUnavailable(f"{self.name} did not answer in time")
        return SILENCE if remaining is None else min(remaining, SILENCE)
