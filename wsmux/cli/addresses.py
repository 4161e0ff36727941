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
    "add_serving",
    "add_tls",
    "address",
    "client_tls",
    "header",
    "headers",
    "server_tls",
    "url",
]

PROTOCOLS = ("wsmux", "yamux", "bymux", "js-ws")


def address(text: str, *schemes: str) -> str:
    """Parse an argument that must be an address of one of these schemes."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if parts.scheme not in schemes or not (parts.hostname or parts.scheme == "unix"):
        *most, last = (f"{scheme}://" for scheme in schemes)
        raise argparse.ArgumentTypeError(f"{text!r} is no {', '.join(most)} or {last} URL")
    if parts.scheme == "unix" and (parts.netloc or not parts.path.strip("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form unix:///PATH")
    if parts.scheme == "tcp" and (port is None or parts.path.strip("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form tcp://HOST:PORT")
    return text


def url(text: str, *further: str) -> str:
    """Parse an argument that must be an address to connect to; ``further`` are more schemes."""
    if urlsplit(address(text, "ws", "wss", "tcp", *further)).port == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: nothing can be connected to port 0")
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
    add_serving(parser)


def add_serving(parser: argparse.ArgumentParser) -> None:
    """Add what any server that listens is told, whatever it speaks."""
    parser.add_argument(
        "--origin", action="append", help="origin whose pages may connect; '*' for all"
    )
    add_tls(parser)


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Add how a server does TLS, and how it tells where it is."""
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


def headers(args: argparse.Namespace, address: str) -> list[str] | None:
    """Return the headers of the request to an address, if there are any.

    Raises:
        CommandError: there is no request that could have them.
    """
    if args.header and urlsplit(address).scheme not in ("ws", "wss"):
        raise CommandError(f"{address} has no HTTP request, so it takes no --header", status=2)
    return args.header or None


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
