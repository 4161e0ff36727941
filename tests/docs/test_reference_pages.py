"""The reference has an entry for each public name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

PAGES = Path(__file__).parent.parent.parent / "docs" / "reference"
ENTRY = re.compile(r"^::: (\S+)\n(?:    options:\n)?(?:      members: \[(.*)\])?", re.MULTILINE)

PACKAGES = (
    "wsmux",
    "wsmux.adapters",
    "wsmux.bus",
    "wsmux.cluster",
    "wsmux.durable",
    "wsmux.flask",
    "wsmux.rpc",
    "wsmux.rpc.testing",
    "wsmux.spark",
    "wsmux.testing",
    "wsmux.tunnel",
    "wsmux.wsgi",
)


def named(path: str) -> object:
    """Return what an entry names: a module, or something in one."""
    home, _, name = path.rpartition(".")
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise  # a package that an extra brings
    return getattr(named(home), name)


@pytest.fixture(scope="module")
def entries() -> list[object]:
    found: list[object] = []
    for page in PAGES.glob("*.md"):
        for path, members in ENTRY.findall(page.read_text()):
            entry = named(path)
            if isinstance(entry, ModuleType):
                names = members.split(", ") if members else entry.__all__
                found += [getattr(entry, name) for name in names]
            else:
                found.append(entry)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_has_an_entry(package: str, entries: list[object]) -> None:
    public = import_module(package)
    missing = [
        name
        for name in public.__all__
        if not any(getattr(public, name) is entry for entry in entries)
    ]
    assert not missing
