"""Both sides write and neither reads: the connection says so, and a watch tells it."""

from __future__ import annotations

import queue
import re
import textwrap
import threading
import time

import wsmux

BULK = bytes(4 * 1024 * 1024)  # more than either side may send unread


def both_write(stream: wsmux.Stream) -> None:
    stream.write(BULK)
    stream.readall()


told: queue.Queue[wsmux.Stall] = queue.Queue()

with (
    wsmux.serve(stream_handler=both_write) as server,
    wsmux.connect(server.url) as connection,
    wsmux.StallWatch(connection, after=0.2, tell=told.put),
    connection.open_stream() as stream,
):
    writer = threading.Thread(target=stream.write, args=(BULK,), name="uploader")
    writer.start()

    stall = told.get(timeout=10)
    while wsmux.Cause.BOTH_FULL not in [finding.cause for finding in connection.explain()]:
        time.sleep(0.01)  # the peer's bytes are still coming
    for finding in connection.explain():
        print(textwrap.fill(re.sub(r"\d+\.\d s", "a moment", str(finding)), 80))
    print("told once:", stall.findings[0].thread, "on stream", stall.findings[0].stream_id)

    read = 0
    while read < len(BULK):  # one side reads, and both go on
        read += len(stream.read(65536))
    writer.join()
    print("read", read, "bytes;", len(connection.explain()), "wait")

# Output:
# uploader has waited a moment in a write to stream 0, without credit, while
# 262144 bytes of the peer lie unread here on stream 0 and it may send no more
# either: both sides write and neither reads
# told once: uploader on stream 0
# read 4194304 bytes; 0 wait
