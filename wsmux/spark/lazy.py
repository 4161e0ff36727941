"""Import what is large when it is first used, so that importing this package stays cheap."""

from __future__ import annotations

import importlib
from typing import Any

from ..hints import how_to_install

__all__ = ["Lazy", "pa", "pc", "pq"]


class Lazy:
    """Stand for a module, which is imported when something of it is asked for.

    Args:
        module: its name. extra: the extra of this package that installs it.
    """

    def __init__(self, module: str, extra: str) -> None:
        self._module = module
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every object that is looked into
            raise AttributeError(name)
        try:
            module = importlib.import_module(self._module)
        except ImportError as error:
            text = f"{self._module} is not installed: {how_to_install(self._extra)}"
            raise ImportError(text) from error
        value = getattr(module, name)
        setattr(self, name, value)
        return value


pa: Any = Lazy("pyarrow", "spark")
pc: Any = Lazy("pyarrow.compute", "spark")
pq: Any = Lazy("pyarrow.parquet", "spark")
