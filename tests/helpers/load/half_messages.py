"""Send all but the end of one message on each of many connections, and hold them open.

``python -m tests.helpers.load.half_messages WIRE COUNT HOW``, where HOW is ``frame``, or
``fragments``: small ones, each whole, of a message without an end.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import wsmux

from ..raw_peer import BINARY, CONTINUATION, RawPeer, raw_client
from .many_connections import echo
from .measuring import MB, Peak, far_end, report, wait_until

MESSAGE = 1024 * 1024
SHORT = 64  # bytes that are never sent
AT_ONCE = 64 * 1024
FRAGMENT = 4000

# Messages that fit the bound of the process.
MOST = wsmux.Config().max_process_buffer // MESSAGE


def main(protocol: str, count: str, how: str) -> dict[str, Any]:
    with far_end("echo", protocol) as far:
        port = urlsplit(far.url).port
        assert port is not None
        with wsmux.connect(far.url, protocol=protocol) as honest:
            echo(honest)
            before, sent = far.memory(), 0
            peers: list[RawPeer] = []
            with Peak(far) as most:
                for _ in range(int(count)):
                    peer = raw_client(port)
                    peers.append(peer)
                    declared = MESSAGE if how == "frame" else None
                    peer.send(peer.frame(BINARY, b"", fin=how == "frame", declared=declared))
                piece = bytes(AT_ONCE)
                if how == "fragments":
                    piece = peers[0].frame(CONTINUATION, bytes(FRAGMENT), fin=False)
                    piece *= AT_ONCE // len(piece)
                alive = list(peers)
                for _ in range((MESSAGE - SHORT) // AT_ONCE):
                    for peer in list(alive):
                        try:
                            peer.send(piece)
                            sent += len(piece)
                        except OSError:
                            alive.remove(peer)
                start = time.monotonic()
                echo(honest)
                took = time.monotonic() - start
                # What is left fits; the rest has to be refused, sooner or later.
                ended: set[int] = set()
                wait_until(lambda: count_refused(peers, ended) >= len(peers) - MOST)
            for peer in peers:
                peer.sock.close()
        return {
            "sent_mb": sent / MB,
            "most_mb": (most[0] - before) / MB,
            "ended": len(ended),
            "echo_s": took,
        }


def count_refused(peers: list[RawPeer], ended: set[int]) -> int:
    """Note which connections the far end has ended; return how many."""
    ended |= {n for n, peer in enumerate(peers) if n not in ended and refused(peer)}
    return len(ended)


def refused(peer: RawPeer) -> bool:
    """Return whether the far end has ended this connection for the memory that it holds."""
    peer.sock.setblocking(False)
    try:
        answer = peer.sock.recv(4096)
    except BlockingIOError:
        return False
    except ConnectionResetError:  # the Close went with the bytes that nobody read
        return True
    return b"Config.max_process_buffer" in answer or not answer


if __name__ == "__main__":
    report(main)
