"""Hold streams with a page: open the address that this prints in a browser."""

from __future__ import annotations

import sys
import threading

from flask import Flask
from werkzeug.serving import make_server

import wsmux
from wsmux.flask import Mux, script_blueprint

PAGE = """<!doctype html><title>wsmux</title><p>Ticks of the server: <ul></ul>
<script type="module">
import { Wsmux } from "/wsmux.js";

const mux = new Wsmux("/mux"), list = document.querySelector("ul");
const hello = await mux.createBidirectionalStream();
const writer = hello.writable.getWriter();
await writer.write(new TextEncoder().encode(`hello, this is ${document.title}`));
await writer.close();

for await (const stream of mux.incomingBidirectionalStreams) {
  for await (const tick of stream.readable.pipeThrough(new TextDecoderStream())) {
    list.append(Object.assign(document.createElement("li"), { textContent: tick }));
  }
  mux.close({ reason: `saw ${list.children.length} ticks` });
}
</script>"""
app = Flask(__name__)
app.register_blueprint(script_blueprint())
app.add_url_rule("/", "index", lambda: PAGE)
finished = threading.Event()


@Mux(app).route("/mux")
def page(connection: wsmux.Connection) -> None:
    with connection.accept_stream() as stream:
        print("the page says:", stream.readall().decode())
    with connection.open_stream() as ticks:
        for number in range(1, 4):
            ticks.write(f"tick {number}".encode())
            threading.Event().wait(0.2)
    try:
        connection.accept_stream()
    except wsmux.ConnectionClosedOK as end:
        print("and at the end:", end.reason)
    finished.set()


server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=server.serve_forever).start()
print(f"open http://127.0.0.1:{server.server_port}/", file=sys.stderr)
finished.wait()
server.shutdown()

# Output:
# the page says: hello, this is wsmux
# and at the end: saw 3 ticks
