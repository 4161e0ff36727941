"""Give the tests TLS contexts for loopback, and the files for another process."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trustme

__all__ = ["Certificates"]


@dataclass(frozen=True)
class Certificates:
    """Hold a context for each side, and PEM files: the server's key and chain, the authority."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    key: Path
    chain: Path
    authority: Path

    @classmethod
    def issue(cls, folder: Path) -> Self:
        """Make an authority and a server certificate of it for loopback."""
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(server)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        key, chain, root = (folder / name for name in ("key.pem", "chain.pem", "authority.pem"))
        issued.private_key_pem.write_to_path(key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(chain, append=True)
        authority.cert_pem.write_to_path(root)
        return cls(server, client, key, chain, root)
