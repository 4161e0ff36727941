"""Make a certificate for the length of a measurement, and the settings of both ends of TLS."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["AUTHORITY", "client_context", "server_context"]

# What must be installed for it.
AUTHORITY = ("trustme",)


@contextmanager
def server_context() -> Iterator[tuple[ssl.SSLContext, str]]:
    """Yield a server's settings, and the file of the authority that its clients must trust."""
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "authority.pem")
        authority.cert_pem.write_to_path(str(path))
        yield context, str(path)


def client_context(certificate: str) -> ssl.SSLContext:
    """Return the settings of a client that trusts that authority alone."""
    return ssl.create_default_context(cafile=certificate)
