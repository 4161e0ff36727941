"""Add the options that say where to listen and where to connect, with TLS and wires."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from .terminal import CommandError

__all__ = [
    "PROTOCOLS",
    "add_connecting",
    "add_listening",
    "client_tls",
    "header",
    "server_tls",
    "url",
]

PROTOCOLS = ("wsmux", "yamux", "bymux", "js-ws")


def url(text: str) -> str:
    """Parse an argument that must be an address to connect to."""
    parts = urlsplit(text)
    if parts.scheme not in ("ws", "wss", "tcp") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no ws://, wss:// or tcp:// URL")
    return text


def header(text: str) -> str:
    """Parse an argument that must be a header."""
    if ":" not in text or "\n" in text or "\r" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 'NAME: VALUE'")
    return text


def add_listening(parser: argparse.ArgumentParser) -> None:
    """Add what a server is told about its clients."""
    parser.add_argument(
        "--protocol",
        action="append",
        choices=PROTOCOLS,
        help="wire to serve, wsmux by default; may be repeated",
    )
    parser.add_argument(
        "--origin", action="append", help="origin whose pages may connect; '*' for all"
    )
    parser.add_argument("--certfile", type=Path, help="certificate chain (PEM), for TLS")
    parser.add_argument("--keyfile", type=Path, help="its key, when not in the same file")
    parser.add_argument("--json", action="store_true", help="print the URL and port as JSON")


def server_tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    """Return how to do TLS as the server, if at all.

    Raises:
        CommandError: there is a key without a certificate.
    """
    if args.keyfile and not args.certfile:
        raise CommandError("--keyfile needs --certfile", status=2)
    if args.certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(args.certfile, args.keyfile)
    return context


def add_connecting(parser: argparse.ArgumentParser) -> None:
    """Add what a client is told about its server."""
    parser.add_argument(
        "--header", action="append", default=[], type=header, metavar="'NAME: VALUE'"
    )
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--insecure", action="store_true", help="accept any certificate")
    trust.add_argument("--cafile", type=Path, help="certificates (PEM) to trust")


def client_tls(args: argparse.Namespace, address: str) -> ssl.SSLContext | None:
    """Return how to do TLS as the client, if at all; a plain socket does when certificates are."""
    plain = urlsplit(address).scheme == "tcp" and (args.cafile or args.insecure)
    if urlsplit(address).scheme != "wss" and not plain:
        return None
    context = ssl.create_default_context(cafile=args.cafile)
    if args.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
