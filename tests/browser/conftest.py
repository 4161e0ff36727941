"""Keep one browser for all tests, and a page of its own for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask

from wsmux.flask import script_blueprint

from ..helpers.browser.chromium import Page, browser, opened
from ..helpers.werkzeug_server import serving

# A page that has the module, and the little that all scripts need.
PAGE = """<!doctype html><title>tests</title><script type="module">
import { Wsmux, WsmuxError, WsmuxStream } from "/wsmux.js";
const encode = (text) => new TextEncoder().encode(text);
// Not by a Response, which keeps the reason of a failure to itself.
const text = async (readable) => {
  let all = "";
  for await (const chunk of readable.pipeThrough(new TextDecoderStream())) all += chunk;
  return all;
};
// A pattern that tells where a byte belongs.
const byteAt = (seed) => (_, i) => (i * 7 + (i >> 8) + seed) & 255;
const pattern = (size, seed = 0) => Uint8Array.from({ length: size }, byteAt(seed));
const caught = (promise) => promise.then(
  (value) => ({ value: String(value) }),
  ({ name, message, source, streamErrorCode: code }) => ({ name, message, source, code }),
);
const write = async (stream, ...chunks) => {
  const writer = stream.writable.getWriter();
  for (const chunk of chunks) await writer.write(typeof chunk === "string" ? encode(chunk) : chunk);
  await writer.close();
};
Object.assign(globalThis, { Wsmux, WsmuxError, WsmuxStream, encode, text, pattern, caught, write });
</script>"""


@pytest.fixture(scope="session")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with browser(tmp_path_factory.mktemp("chromium")) as port:
        yield port


@pytest.fixture
def app() -> Flask:
    """Return an application with the module and a page; tests add their routes."""
    made = Flask("app")
    made.register_blueprint(script_blueprint())
    made.add_url_rule("/", "page", lambda: PAGE)
    return made


@pytest.fixture
def page(app: Flask, devtools: int) -> Iterator[Page]:
    """Return a tab with the page; the routes must have been added by then."""
    with serving(app) as port, opened(devtools, f"http://127.0.0.1:{port}/") as tab:
        yield tab
