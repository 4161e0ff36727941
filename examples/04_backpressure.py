"""See a writer held back by a reader that is slow, while another stream goes on."""

from __future__ import annotations

import threading

import wsmux

WINDOW = 64 * 1024
go_on = threading.Event()


def handler(stream: wsmux.Stream) -> None:
    if stream.id == 0:
        go_on.wait()  # the first stream's reader is busy with something else
    stream.write(f"{len(stream.read())} bytes".encode())


with (
    wsmux.serve(stream_handler=handler, config=wsmux.Config(receive_window=WINDOW)) as server,
    wsmux.connect(server.url) as connection,
    connection.open_stream() as slow,
    connection.open_stream() as quick,
):
    slow.timeout = 0.5
    try:
        slow.write(bytes(10 * WINDOW))
    except wsmux.WriteTimeout as error:
        print("held back after", error.bytes_written // WINDOW, "window")
    quick.write(b"not held back")
    quick.close_write()
    print("the other stream:", quick.read().decode())
    go_on.set()
    slow.timeout = None
    slow.write(bytes(9 * WINDOW))
    slow.close_write()
    print("in the end:", slow.read().decode())

# Output:
# held back after 1 window
# the other stream: 13 bytes
# in the end: 655360 bytes
