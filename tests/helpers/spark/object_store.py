"""Run a store of objects that speaks S3 as a process of its own: the server of ``moto``.

It honours ``If-None-Match: *`` of puts, as S3 does, and takes any credentials unless told
otherwise. What is in it goes with the process.
"""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from ..ports import free_port
from ..programs import package
from ..stopped_process import KillableProcess
from ..timeouts import WAIT

__all__ = ["BUCKET", "KEY", "SECRET", "Between", "ObjectStore", "between"]

BUCKET = "bucket-of-tests"
KEY, SECRET = "AKIAOFTESTS", "this-is-a-secret-of-tests"

PAUSE = 0.02

# Its threads and what they wait on are there for good, so before the guards count.
if importlib.util.find_spec("obstore") is not None:
    import obstore

    from .engines import deltalake

    obstore.put(obstore.store.MemoryStore(), "x", b"")
    _NOBODY = {
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_allow_http": "true",
        "max_retries": "0",
    }
    with suppress(Exception):
        deltalake.DeltaTable("s3://x/y", storage_options=_NOBODY)


class ObjectStore(KillableProcess):
    """Run one server.

    Args:
        strict: refuse credentials that it does not know; it knows none.
    """

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        package("obstore", "s3")
        package("moto", "spark-test")
        self.port = free_port()
        # The bucket may still be made by anybody.
        self._environment = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if strict else {}
        self._prefixes = map("tests/{}".format, itertools.count())

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + WAIT
        while not self._answers():
            assert self._process.poll() is None, "moto has ended"
            assert time.monotonic() < deadline, "moto does not answer"
            time.sleep(PAUSE)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            connection.request("PUT", f"/{BUCKET}")
            return connection.getresponse().status == 200
        except ConnectionError:
            return False
        finally:
            connection.close()

    def options(self, port: int | None = None) -> dict[str, str]:
        """Return what reaches it, or what stands before it at a port."""
        return {
            "aws_endpoint_url": f"http://127.0.0.1:{port or self.port}",
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
        }

    def address(self) -> str:
        """Return an address that nobody has used."""
        return f"s3://{BUCKET}/{next(self._prefixes)}"

    def keys(self, address: str) -> list[str]:
        """Return the keys of all objects below an address, less what that has itself."""
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        store = obstore.store.S3Store(bucket, config=self.options(), prefix=prefix)
        return sorted(each["path"] for some in obstore.list(store) for each in some)


class Between:
    """Stand between a client and the store, and see all requests.

    Attributes:
        port: where it listens. cuts: how many requests are still cut off that come, unheard.
        lose: says of a request, by its method and path, whether its answer is lost.
        seen: method and path of all requests.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.port = 0
        self.cuts = 0
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        self.seen: list[tuple[str, str]] = []


@contextmanager
def between(store: ObjectStore) -> Iterator[Between]:
    """Start what stands before a store."""
    told = Between(store)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = WAIT

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # the client has left
                self.close_connection = True

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if told.cuts:
                told.cuts -= 1
                self.close_connection = True
                return
            told.seen.append((self.command, self.path))
            upstream = http.client.HTTPConnection("127.0.0.1", store.port, timeout=WAIT)
            try:
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
            finally:
                upstream.close()
            if told.lose(self.command, self.path):
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            if self.command == "HEAD":
                self.send_header("Content-Length", answer.getheader("Content-Length") or "0")
            else:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # so that they are waited for

        def process_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().process_request(request, client_address)

    connections: list[socket.socket] = []
    with Server(("127.0.0.1", 0), Handler) as server:
        told.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join(WAIT)
            for connection in connections:  # which clients keep open for their next request
                with suppress(OSError):  # it is closed
                    connection.shutdown(socket.SHUT_RDWR)
