"""Implement the function that ``foreachPartition`` runs: rows as the requests of an upload."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...exceptions import WsmuxError
from ..connection_settings import Link, retry_delay
from .batches import keyed_row
from .rows import Key, key_of
from .task_calls import Target, failure, passes
from .values import plainer

__all__ = ["UploadCalls"]


class _Failed(Exception):
    """Carry an error of the upload, as opposed to one of the rows."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class UploadCalls:
    """Upload rows to a procedure; made by ``Procedure.upload``."""

    target: Target
    init: Any
    key: Key | None
    timeout: float
    retries: int
    rows_per_call: int

    def __call__(self, rows: Iterable[Any]) -> list[Any]:
        """Send the rows, wait for the responses and return them.

        Raises:
            SparkError: the upload failed. Exceptions from ``rows`` are raised unchanged.
        """
        link = self.target.recipe.link()
        requests = self._requests(iter(rows))
        if not self.retries:
            try:
                return [self._upload(link, requests)]
            except _Failed as failed:
                raise failure(link, self.target, failed.error) from None
        responses: list[Any] = []
        chunk = list(islice(requests, self.rows_per_call))
        while chunk or not responses:  # no rows make one empty upload, as without retries
            responses.append(self._repeated(link, chunk))
            chunk = list(islice(requests, self.rows_per_call))
        return responses

    def _requests(self, rows: Iterator[Any]) -> Iterator[Any]:
        make_plain = plainer(self.target.recipe.codec)
        if self.key is None:
            return map(make_plain, rows)
        take = key_of(self.key)
        return (keyed_row(make_plain(row), make_plain(take(row))) for row in rows)

    def _repeated(self, link: Link, requests: list[Any]) -> Any:
        for attempt in range(self.retries + 1):
            try:
                return self._upload(link, requests)
            except _Failed as failed:
                if attempt == self.retries or not passes(link, failed.error):
                    raise failure(link, self.target, failed.error) from None
            time.sleep(retry_delay(self.target.recipe.retry_backoff, attempt + 1))
        raise AssertionError("there is at least one attempt")

    def _upload(self, link: Link, requests: Iterable[Any]) -> Any:
        with link.client().upload(self.target.service, self.target.procedure, self.init) as call:
            for request in requests:
                try:
                    call.write(request, self.timeout)
                except (WsmuxError, OSError) as error:
                    raise _Failed(error) from error
            try:
                return call.finish(self.timeout)
            except (WsmuxError, OSError) as error:
                raise _Failed(error) from error
