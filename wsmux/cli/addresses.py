"""Add the options for listening and connecting, with TLS and wires."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..runtime.hints import check_characters, wrong_url
from .terminal import CommandError
from .tokens import add_token_file, token

__all__ = [
    "PROTOCOLS",
    "add_connecting",
    "add_host_and_port",
    "add_listening",
    "add_serving",
    "add_subprotocol",
    "add_tls",
    "add_token",
    "add_trust",
    "address",
    "client_tls",
    "connecting",
    "header",
    "headers",
    "host_and_port",
    "origin",
    "server_tls",
    "subprotocol",
    "trusting",
    "url",
]

PROTOCOLS = ("wsmux", "yamux", "bymux", "js-ws")


def origin(text: str) -> str:
    """Parse an origin of pages."""
    from ..handshake.origin import allowed_origins

    try:
        allowed_origins([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def address(text: str, *schemes: str) -> str:
    """Parse an address with one of these schemes, in upper or lower case."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if parts.scheme not in schemes or not (parts.hostname or parts.scheme == "unix"):
        raise argparse.ArgumentTypeError(wrong_url(text, *schemes))
    if parts.scheme == "unix" and (parts.netloc or not parts.path.strip("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form unix:///PATH")
    if parts.scheme == "tcp" and (port is None or parts.path.strip("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form tcp://HOST:PORT")
    return f"{parts.scheme}{text[len(parts.scheme) :]}"


def url(text: str, *further: str) -> str:
    """Parse an address to connect to; ``further`` are more schemes."""
    whole = address(text, "ws", "wss", "tcp", *further)
    parts = urlsplit(whole)
    if parts.port == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: port 0 cannot be connected to")
    if parts.scheme != "unix":  # its path is not part of a request
        try:
            check_characters(whole)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return whole


def header(text: str) -> str:
    """Parse a header."""
    from ..handshake.headers import header_lines

    try:
        return header_lines([text])[0]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_listening(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server for its clients."""
    parser.add_argument(
        "--protocol",
        action="append",
        choices=PROTOCOLS,
        help="wire to serve, wsmux by default; may be repeated",
    )
    add_serving(parser)


def add_serving(parser: argparse.ArgumentParser) -> None:
    """Add the options of any server that listens, whatever its protocol."""
    parser.add_argument(
        "--origin",
        action="append",
        type=origin,
        help="origin whose pages may connect, such as https://example.org; '*' for all",
    )
    add_tls(parser)


def host_and_port(text: str) -> tuple[str, int]:
    """Parse an argument such as ``0.0.0.0:8080`` or ``[::]:8080``."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != text or "@" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT")
    return host, port


def add_host_and_port(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option of a server for the host and port where it listens."""
    parser.add_argument(
        "-l",
        "--listen",
        type=host_and_port,
        default=host_and_port(default),
        metavar="HOST:PORT",
        help=f"where to listen, {default} by default; port 0 picks a free one",
    )


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server for TLS, and for printing its address."""
    parser.add_argument("--certfile", type=Path, help="certificate chain (PEM), for TLS")
    parser.add_argument("--keyfile", type=Path, help="its key, if not in the same file")
    parser.add_argument("--json", action="store_true", help="print the URL and port as JSON")


def server_tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context of a server, if any.

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


def add_connecting(parser: argparse.ArgumentParser, *, resumes: bool | None = None) -> None:
    """Add the options of a client for its server.

    Args:
        resumes: whether its connection is resumed after an outage by default; ``None`` is for a
            command whose connection cannot be.
    """
    parser.add_argument(
        "--header", action="append", default=[], type=header, metavar="'NAME: VALUE'"
    )
    add_trust(parser)
    if resumes is not None:
        _add_resume(parser, resumes)


def _add_resume(parser: argparse.ArgumentParser, by_default: bool) -> None:
    """Add the option for a connection that is resumed after an outage."""
    default = "off by default"
    if by_default:
        default = "on by default in the wire wsmux, but with --subprotocol, or TLS over tcp://"
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        help=f"go on after an outage of the network or a proxy, if the server allows; {default}",
    )
    parser.set_defaults(resumes_by_default=by_default)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add which certificates of a server are trusted."""
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--insecure", action="store_true", help="accept any certificate")
    trust.add_argument("--cafile", type=Path, help="certificates (PEM) to trust")


def add_token(parser: argparse.ArgumentParser) -> None:
    """Add the option for the client's token, which ``headers`` then includes."""
    add_token_file(parser, "token to send, as Authorization: Bearer")


def add_subprotocol(parser: argparse.ArgumentParser, name: str = "--subprotocol") -> None:
    """Add the option for the name of the wire in the handshake."""
    parser.add_argument(
        name,
        dest="subprotocol",
        type=_subprotocol,
        metavar="NAME",
        help="the server's name for the wire; 'none' if it does not use subprotocols",
    )


def _subprotocol(text: str) -> str:
    from ..protocols.registry import check_subprotocol

    try:
        return check_subprotocol(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def subprotocol(args: argparse.Namespace, address: str) -> dict[str, Any]:
    """Return the argument of ``connect`` for the name of the wire, if any.

    Raises:
        CommandError: there is no handshake.
    """
    if args.subprotocol is None:
        return {}
    if urlsplit(address).scheme not in ("ws", "wss"):
        raise CommandError(f"{address} has no handshake, so it takes no subprotocol", status=2)
    return {"subprotocol": None if args.subprotocol == "none" else args.subprotocol}


def resuming(
    args: argparse.Namespace, address: str, context: ssl.SSLContext | None
) -> dict[str, Any]:
    """Return the argument of ``connect`` for a connection that is resumed.

    By default it is asked for only where no server can take offence: a server of ``js-ws`` may not
    expect a subprotocol, nor one with a name of its own for the wire.

    Raises:
        CommandError: it was asked for and cannot be had.
    """
    tls_alone = urlsplit(address).scheme not in ("ws", "wss") and context is not None
    if args.resume is None:
        plain = args.protocol == "wsmux" and args.subprotocol is None
        return {"resume": args.resumes_by_default and plain and not tls_alone}
    if args.resume and tls_alone:
        raise CommandError(f"--resume with TLS needs wss://, and {address} is not", status=2)
    if args.resume and args.subprotocol is not None:
        raise CommandError("--resume has subprotocols of its own: without --subprotocol", status=2)
    return {"resume": args.resume}


def connecting(args: argparse.Namespace, address: str) -> dict[str, Any]:
    """Return what ``connect`` is told of a server, beside its address and the wire.

    Raises:
        CommandError, OSError: as ``headers``, ``subprotocol`` and ``client_tls``.
    """
    context = client_tls(args, address)
    return {
        "headers": headers(args, address),
        "ssl_context": context,
        **subprotocol(args, address),
        **(resuming(args, address, context) if "resume" in args else {}),
    }


def headers(args: argparse.Namespace, address: str) -> list[str] | None:
    """Return the headers of the request to an address, if any.

    A token from the environment is used only where it can be sent, and ``--header`` takes
    precedence.

    Raises:
        CommandError: there is no request, or the token is invalid or given twice.
        OSError: the file of the token cannot be read.
    """
    path = args.token_file if "token_file" in args else None
    lines: list[str] = [*args.header]
    if urlsplit(address).scheme not in ("ws", "wss", "http", "https"):
        if lines or path:
            option = "--header" if lines else "--token-file"
            raise CommandError(f"{address} has no HTTP request, so it takes no {option}", status=2)
        return None
    own = any(line.partition(":")[0].strip().lower() == "authorization" for line in lines)
    if own and path:
        text = "--token-file is sent as the header Authorization, which --header gives too"
        raise CommandError(text, status=2)
    if "token_file" in args and not own and (known := token(path)):
        lines.append(f"Authorization: Bearer {known}")
    return lines or None


def client_tls(args: argparse.Namespace, address: str) -> ssl.SSLContext | None:
    """Return the TLS context of a client, if any; tcp:// uses one only if certificates are set."""
    plain = urlsplit(address).scheme == "tcp" and (args.cafile or args.insecure)
    if urlsplit(address).scheme not in ("wss", "https") and not plain:
        return None
    return trusting(args)


def trusting(args: argparse.Namespace) -> ssl.SSLContext:
    """Return how to do TLS as a client that trusts what it was told to."""
    context = ssl.create_default_context(cafile=args.cafile)
    if args.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
