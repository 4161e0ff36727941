"""Give the tests the suite, or say why it cannot be run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.autobahn.suite import install
from ..helpers.interop.installs import Unavailable
from ..helpers.programs import absent


@pytest.fixture(scope="session")
def testsuite() -> Path:
    """Return the suite's program."""
    try:
        return install()
    except Unavailable as error:
        absent(f"Autobahn|Testsuite cannot be run: {error}")
