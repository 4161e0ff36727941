"""Guard every test, and give those that want them a certificate and WSGI servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from wsmux.runtime import logs

from .helpers.carriers import WsgiServers
from .helpers.certificates import Certificates

pytest_plugins = [
    "tests.helpers.bytecode",
    "tests.helpers.connections",
    "tests.helpers.examples",
    "tests.helpers.fixtures",
    "tests.helpers.guards",
    "tests.helpers.leading",
]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for which tests were skipped, once."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")


@pytest.fixture(autouse=True)
def lines_counted_anew() -> None:
    """Let no test leave out what another one logged a moment ago."""
    logs.forget()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make a certificate authority and a server certificate for loopback."""
    return Certificates.issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def wsgi_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WsgiServers]:
    """Return the WSGI servers, each started when its address is first asked for."""
    servers = WsgiServers(tmp_path_factory.mktemp("wsgi"))
    yield servers
    servers.stop()
