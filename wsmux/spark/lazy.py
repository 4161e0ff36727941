"""Import what is large when it is first used, so that importing this package stays cheap."""

from __future__ import annotations

import importlib
from typing import Any

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
            raise ImportError(
                f"{self._module} is not installed: pip install 'wsmux-streams[{self._extra}]'"
            ) from error
        value = getattr(module, name)
        setattr(self, name, value)
        return value


pa: Any = Lazy("pyarrow", "spark")
pc: Any = Lazy("pyarrow.compute", "spark")
pq: Any = Lazy("pyarrow.parquet", "spark")
