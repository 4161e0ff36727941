"""Serve at a port that other processes share, until SIGTERM.

``python -m tests.helpers.reused_port PORT FOLDER`` prints the port, and logs to stderr.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

import wsmux

__all__: list[str] = []

# Seconds that what is open has after SIGTERM.
DRAIN = 0.5


def echo(stream: wsmux.Stream) -> None:
    """Say which process this is, and return what comes."""
    stream.write(b"%d\n" % os.getpid())
    while data := stream.read(65536):
        stream.write(data)


def main(port: str, folder: str) -> None:
    logging.basicConfig(level=logging.INFO)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also in the threads to come
    resume = wsmux.Resume(workers=folder)
    server = wsmux.serve(stream_handler=echo, port=int(port), resume=resume, reuse_port=True)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM})
    server.shutdown(DRAIN)


if __name__ == "__main__":
    main(*sys.argv[1:])
