"""Send an ordinary HTTP request to an address, with time and size limits."""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from ..runtime.hints import not_connected
from .terminal import CommandError

__all__ = ["fetch"]

REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def fetch(
    url: str,
    headers: Iterable[str] | None,
    *,
    ssl_context: ssl.SSLContext | None,
    timeout: float,
    max_size: int,
) -> bytes:
    """Return the first ``max_size`` bytes of the answer of an address, ``ws[s]`` or ``http[s]``.

    A thread makes the request, and is abandoned when the time is up: nothing else limits a name
    resolution, or a server that sends its headers byte by byte.

    Raises:
        CommandError: the server refuses, or does not use HTTP.
        TimeoutError: it is too slow.
    """
    asked = f"http{url[2:]}" if url.startswith("ws") else url
    request = urllib.request.Request(asked)
    for line in headers or ():
        name, _, value = line.partition(":")
        request.add_header(name.strip(), value.strip())
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def get() -> None:
        try:
            answers.put(_get(request, url, ssl_context, timeout, max_size))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=get, name="wsmux-rpc-fetch", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        raise TimeoutError(f"no answer from {url} in time") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


class _Stay(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: the headers may be meant only for this server."""

    def redirect_request(self, *args: Any) -> None:
        """Return the redirect itself as the answer."""


def _get(
    request: urllib.request.Request,
    url: str,
    context: ssl.SSLContext | None,
    timeout: float,
    max_size: int,
) -> bytes:
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Stay())
    try:
        with opener.open(request, timeout=timeout) as answer:
            data: bytes = answer.read(max_size)
            return data
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(_refusal(url, error)) from error
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError | socket.gaierror):
            raise not_connected(url, reason) from error
        raise CommandError(f"no answer from {url}: {error.reason}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise CommandError(f"{url} cannot be asked over HTTP: {error!r}") from error


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    """Describe an answer that is not a schema."""
    said = f"{url} answers {error.code} {error.reason}"
    if 300 <= error.code < 400:
        return f"{said}: look for the schema at {error.headers.get('Location')}"
    if 400 <= error.code < 500 and error.code not in REFUSALS:
        return f"{said}: no schema is served there; wsmux.rpc serves it with serve_schema=True"
    return said
