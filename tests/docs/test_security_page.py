"""The program of the page about security does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import wsmux

from ..helpers.doc_pages import asked
from ..helpers.scripted import WAIT
from ..helpers.werkzeug_server import serving

PAGE = (Path(__file__).parents[2] / "docs" / "topics" / "security.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_its_program_lets_in_who_is_known() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(PROGRAM, names)
    app = names["app"]
    cookie = app.session_interface.get_signing_serializer(app).dumps({"user": "ann"})
    with serving(app) as port:
        url = f"ws://127.0.0.1:{port}"
        assert asked(f"{url}/notes", headers={"Cookie": f"session={cookie}"}) == b"notes of ann"
        assert asked(f"{url}/status") == b"fine"
        with pytest.raises(wsmux.HandshakeError, match="not allowed") as caught:
            wsmux.connect(f"{url}/notes", timeout=WAIT)
        assert caught.value.status == 403
        names["mux"].shutdown(WAIT)
