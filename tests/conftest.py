"""Guard every test, and give those that want it a certificate."""

from __future__ import annotations

import pytest

from .certificates import Certificates

pytest_plugins = ["tests.guards"]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make a certificate authority and a server certificate for loopback."""
    return Certificates.issue(tmp_path_factory.mktemp("certificates"))
