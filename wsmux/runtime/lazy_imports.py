"""Import modules when one of their names is first used.

``lazy_names`` does so for the public names of a package, ``Lazy`` for a large third-party module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .hints import how_to_install

__all__ = ["Lazy", "delta", "lazy_names", "obstore", "pa", "pc", "pq"]


def lazy_names(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: the name of the package.
        homes: the public names, by the module that defines them.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{home}", package), name)
        setattr(sys.modules[package], name, value)  # later look-ups do not come here
        return value

    return load


class Lazy:
    """A module that is imported when one of its attributes is first used.

    Args:
        module: its name.
        extra: the extra of this package that installs it.
    """

    def __init__(self, module: str, extra: str) -> None:
        self._module = module
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up on every object by introspection
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
delta: Any = Lazy("deltalake", "spark")
obstore: Any = Lazy("obstore", "s3")
