"""Implement the function that ``foreachPartition`` runs: rows as the requests of an upload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..connection_settings import Link
from ..retries import Retries, from_source
from .batches import keyed_row
from .rows import Key, key_of
from .task_calls import Target, failure, passes
from .values import plainer

__all__ = ["UploadCalls"]


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
            return [self._sent(link, from_source(requests))]
        responses: list[Any] = []
        chunk = list(islice(requests, self.rows_per_call))
        while chunk or not responses:  # no rows make one empty upload, as without retries
            responses.append(self._sent(link, chunk))
            chunk = list(islice(requests, self.rows_per_call))
        return responses

    def _requests(self, rows: Iterator[Any]) -> Iterator[Any]:
        make_plain = plainer(self.target.recipe.codec)
        if self.key is None:
            return map(make_plain, rows)
        take = key_of(self.key)
        return (keyed_row(make_plain(row), make_plain(take(row))) for row in rows)

    def _sent(self, link: Link, requests: Iterable[Any]) -> Any:
        return Retries(self.retries, self.target.recipe.retry_backoff).call(
            lambda: self._upload(link, requests),
            lambda error: failure(link, self.target, error),
            lambda error: passes(link, error),
        )

    def _upload(self, link: Link, requests: Iterable[Any]) -> Any:
        with link.client().upload(self.target.service, self.target.procedure, self.init) as call:
            for request in requests:
                call.write(request, self.timeout)
            return call.finish(self.timeout)
