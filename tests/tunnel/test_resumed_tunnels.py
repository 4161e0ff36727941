"""What goes through ``wsmux forward`` is one connection, however often the network is cut.

The bytes are a pattern of their own offsets, so that a lost, doubled or moved piece shows. The long
one is a download of 1 GiB over 200 cuts: ``pytest -m long tests/tunnel/test_resumed_tunnels.py``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from wsmux.testing import FaultProxy

from ..helpers.commands import run, running, served
from ..helpers.fixtures import Tell
from ..helpers.tunnel_server import connected, sending

MIB = 1024 * 1024
BLOCK = 64 * 1024

Cuts = list[tuple[int, str]]


def numbered(first: int) -> bytes:
    """Return the block from this offset: each eight bytes are their own offset."""
    return struct.pack(f">{BLOCK // 8}Q", *range(first, first + BLOCK, 8))


@contextmanager
def source(size: int) -> Iterator[tuple[str, list[int]]]:
    """Send ``size`` numbered bytes to each that connects; yield the place, and what each got."""
    sent: list[int] = []

    def send(sock: socket.socket) -> None:
        sent.append(0)
        for first in range(0, size, BLOCK):
            sock.sendall(numbered(first))
            sent[-1] += BLOCK

    with sending(send) as port:
        yield f"127.0.0.1:{port}", sent


def download(place: str, size: int) -> None:
    """Read all, and compare each block."""
    with connected(place) as sock, sock.makefile("rb") as file:
        for first in range(0, size, BLOCK):
            assert file.read(BLOCK) == numbered(first), f"within the block at {first}"
        assert not file.read(1)


@contextmanager
def tunnel_over(place: str, *options: str, tcp: bool = False) -> Iterator[tuple[FaultProxy, str]]:
    """Forward a port to ``place`` through a proxy; yield the proxy and where to connect."""
    with served("--allow-forward", place, *["--tcp"] * tcp) as url:
        scheme, port = url.split(":")[0], int(url.rsplit(":", 1)[1].rstrip("/"))
        assert scheme == ("tcp" if tcp else "ws")
        with (
            FaultProxy(port) as proxy,
            running(
                "forward",
                f"{scheme}://127.0.0.1:{proxy.port}",
                "-L",
                f"0:{place}",
                "--json",
                *options,
            ) as line,
        ):
            told: dict[str, Any] = json.loads(line)
            yield proxy, told["local"][0][0]


@pytest.mark.parametrize(("how", "tcp"), [("rst", False), ("fin", False), ("rst", True)])
def test_a_download_survives_cuts_in_one_connection(how: Any, tcp: bool) -> None:
    size, cuts = 8 * MIB, 6
    with source(size) as (place, sent), tunnel_over(place, tcp=tcp) as (proxy, near):
        proxy.cut_after(*[MIB + 12_345] * cuts, way="down", how=how)
        download(near, size)
        assert not proxy.cutting
        assert proxy.accepted == 1 + cuts
    assert sent == [size]


@pytest.mark.parametrize(
    ("serve", "arguments"), [(["--echo"], ["cat"]), (["--exec", "cat"], ["exec", "--", "cat"])]
)
def test_cat_and_exec_survive_cuts(serve: list[str], arguments: list[str]) -> None:
    data = b"".join(map(numbered, range(0, 2 * MIB, BLOCK)))
    with served(*serve) as url, FaultProxy(int(url.rsplit(":", 1)[1].rstrip("/"))) as proxy:
        proxy.cut_after(MIB // 2, MIB, way="down", how="rst")
        name, *rest = arguments
        done = run(name, "--resume", proxy.url, *rest, data=data)
        assert not proxy.cutting
        assert proxy.accepted == 3
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == data


def test_without_resuming_a_cut_ends_what_goes_through() -> None:
    size = 8 * MIB
    with source(size) as (place, _), tunnel_over(place, "--no-resume") as (proxy, near):
        proxy.cut_after(MIB, way="down", how="rst")
        with (
            connected(near) as sock,
            sock.makefile("rb") as file,
            pytest.raises(ConnectionResetError),
        ):
            file.read()


@pytest.mark.long
@pytest.mark.hang_bound(1200)
def test_a_gibibyte_survives_200_cuts_and_black_holes(tell: Tell) -> None:
    """Cut by resets and ends of file in turn, each tenth time after everything has vanished."""
    size, cuts = 1024 * MIB, 200
    with source(size) as (place, sent), tunnel_over(place) as (proxy, near):
        ended = threading.Event()
        outages: dict[str, list[float]] = {"rst": [], "fin": [], "lost": []}
        memory: list[int] = []

        def arrived(more: int) -> bool:
            """Wait until so many more bytes have come from the server; false at the end."""
            before = proxy.counters("down").received
            while proxy.counters("down").received < before + more:
                if ended.wait(0.002):
                    return False
            return True

        def cut() -> None:
            for number in range(cuts):
                if not arrived(4 * MIB):
                    return
                memory.append(resident())
                began, how = time.monotonic(), "rst" if number % 2 else "fin"
                if number % 10 == 9:
                    how = "lost"
                    proxy.lose("up", "down")
                    ended.wait(0.5)
                proxy.cut("rst" if number % 2 else "fin")
                if arrived(BLOCK):
                    outages[how].append(time.monotonic() - began)

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            download(near, size)
        finally:
            ended.set()
            cutter.join()
    assert sent == [size]
    assert sum(map(len, outages.values())) == cuts
    for how, seconds in outages.items():
        tell(
            f"{len(seconds)} {how}: data again after {median(seconds) * 1000:.0f} ms in the "
            f"median, {max(seconds) * 1000:.0f} ms at most"
        )
    more = max(memory) - memory[10]  # the first cuts import what reconnects
    tell(f"resident memory of both commands: {memory[10]} KiB after ten cuts, {more} more at most")
    assert more <= 4 * 1024


def resident() -> int:
    """Return the KiB of memory of the commands that this process runs."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    texts = [Path(f"/proc/{child}/status").read_text() for child in children]
    return sum(int(text.split("VmRSS:")[1].split()[0]) for text in texts)
