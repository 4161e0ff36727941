"""Upload a file that goes on after its connection, and the server, were ended in the middle."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import wsmux
from wsmux.durable import DurableHandler

DATA = bytes(range(256)) * 4096  # 1 MiB, which the client can read again


def serve(folder: str) -> wsmux.Server:
    """Start a server, as after a kill: all it knows is what is in the folder."""
    offsets = wsmux.FileOffsets(folder)
    return wsmux.serve(stream_handler=DurableHandler(offsets.receive, offsets=offsets))


with tempfile.TemporaryDirectory() as folder:
    with serve(folder) as server, wsmux.connect(server.url) as connection:
        stream = connection.open_stream(durable="numbers")
        stream.write(DATA[:300_000])
        print(stream.wait_committed(), "bytes survive")
        connection.abort()  # the cable is pulled

    with serve(folder) as server, wsmux.connect(server.url) as connection:
        with connection.open_stream(durable="numbers") as stream:
            print("going on at", stream.offset)
            file = io.BytesIO(DATA)
            file.seek(stream.offset)
            shutil.copyfileobj(file, stream)
        print("complete:", Path(folder, "numbers").read_bytes() == DATA)

# Output:
# 300000 bytes survive
# going on at 300000
# complete: True
