"""Names of a package are imported when they are asked for, once."""

from __future__ import annotations

import wsmux
from wsmux.runtime.lazy_imports import lazy_names


def test_a_lazy_name_is_loaded_once() -> None:
    assert lazy_names("wsmux", {"config": ["Config"]})("Config") is wsmux.Config
    assert "Config" in vars(wsmux)
