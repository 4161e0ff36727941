"""Give the tests TLS contexts for loopback."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trustme

__all__ = ["Certificates"]


@dataclass(frozen=True)
class Certificates:
    """Hold a context for each side, and the files for another process."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    chain: Path
    authority: Path

    @classmethod
    def issue(cls, authority: trustme.CA, folder: Path) -> Self:
        issued = authority.issue_cert("127.0.0.1", "localhost")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(server)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        chain, root = folder / "server.pem", folder / "authority.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(chain))
        authority.cert_pem.write_to_path(str(root))
        return cls(server, client, chain, root)
