"""Drop responses that were not read to their end; in a process of its own, which may lock up.

Their finalizers may run anywhere, here while the thread holds the connection's lock.
"""

from __future__ import annotations

import pytest

from ..helpers.dropped_script import run_dropping
from ..helpers.timeouts import WAIT

DROP = """
    import gc
    import threading
    import requests
    import wsmux
    from wsmux.adapters import MuxAdapter, http_connection
    from wsmux.wsgi import StreamServer

    cancelled = threading.Event()

    class Endless:
        def __iter__(self):
            while True:
                yield bytes(50_000)

        def close(self):
            cancelled.set()

    def app(environ, start):
        start("200 OK", [("Content-Type", "application/octet-stream")])
        return Endless()

    def ask_requests(client):
        with requests.Session() as session:
            session.mount("mux://", MuxAdapter(client))
            return session.get("mux://a/", stream=True, timeout={wait})

    def ask_http_client(client):
        connection = http_connection(client, timeout={wait})
        connection.request("GET", "/", headers={{"Connection": "close"}})
        response = connection.getresponse()
        connection.close()
        return response

    with (
        wsmux.serve(stream_handler=StreamServer(app)) as server,
        wsmux.connect(server.url) as client,
    ):
        gc.disable()
        response = ask_{library}(client)
        response.itself = response if {cycle} else None
        with client._multiplexer.mutex:
            del response
            gc.collect()
        gc.enable()
        assert client.ping({wait}) > 0
        assert cancelled.wait({wait})
        assert client.wait_drained({wait})
        print("cancelled")
        server.shutdown(0)
"""


@pytest.mark.parametrize("library", ["requests", "http_client"])
@pytest.mark.parametrize("cycle", [False, True], ids=["at-once", "by-the-collector"])
def test_a_response_dropped_unread_under_the_lock_does_not_lock_up(
    cycle: bool, library: str
) -> None:
    done = run_dropping(DROP, cycle=cycle, library=library, wait=WAIT / 2)
    assert (done.stdout, done.stderr, done.returncode) == ("cancelled\n", "", 0)
