"""Run the steps below HTTP: name, proxy, TCP, TLS."""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
import time
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ..runtime.deadline import Deadline
from .report import Failed, Report

__all__ = ["Place", "look_up", "place_of", "reach", "secure"]

PORTS = {"ws": 80, "wss": 443}

# Days before the expiry of a certificate from which on it is reported.
EXPIRES_SOON = 14

# Maximum bytes of a proxy's answer.
MAX_ANSWER = 16 * 1024


class Place(NamedTuple):
    """The address of the server, and the proxy on the way, if there is one."""

    host: str
    port: int
    proxy: SplitResult | None


def place_of(url: str) -> Place:
    """Return the address of a URL, and the proxy that the environment sets for it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or PORTS.get(parts.scheme, 0)
    if parts.scheme not in PORTS or proxy_bypass(f"{host}:{port}"):
        return Place(host, port, None)
    proxies = getproxies()
    named = proxies.get("https" if parts.scheme == "wss" else "http")
    return Place(host, port, urlsplit(named) if named else None)


def look_up(report: Report, place: Place) -> None:
    """Resolve the host name to connect to."""
    host = place.host if place.proxy is None else place.proxy.hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        report.ok("dns", f"{host} is already an address")
        return
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        fix = "check the spelling of the host, and that this machine's DNS knows it"
        raise Failed("dns", f"the name {host} cannot be resolved: {error}", fix) from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    took = time.monotonic() - began
    report.ok("dns", f"{host} is {', '.join(addresses)}, found in {took * 1000:.0f} ms")


def reach(report: Report, place: Place, timeout: float) -> tuple[socket.socket, float]:
    """Connect, through the proxy if there is one; return the socket and the round-trip time.

    The time is that of TCP alone, in seconds: to the proxy, if there is one.
    """
    proxy = place.proxy
    if proxy is None:
        report.ok("proxy", "none is set for this address")
        sock, took = _dial("tcp", place.host, place.port, timeout)
        report.ok("tcp", f"{place.host}:{place.port} answered in {took * 1000:.1f} ms")
        return sock, took
    shown = f"{proxy.scheme}://{proxy.hostname}:{proxy.port or 80}"
    if proxy.scheme != "http":
        report.skip("proxy", f"{shown} is not an HTTP proxy; the upgrade goes through it")
        raise _Opaque
    sock, took = _dial("proxy", proxy.hostname or "", proxy.port or 80, timeout)
    try:
        _tunnel(sock, place, proxy, shown, timeout)
    except BaseException:
        sock.close()
        raise
    report.ok("proxy", f"{shown} opened a tunnel")
    report.ok("tcp", f"{place.host}:{place.port} was reached through the proxy")
    return sock, took


class _Opaque(Exception):
    """Report that only the actual handshake can continue from here."""


OPAQUE = _Opaque


def _dial(step: str, host: str, port: int, timeout: float) -> tuple[socket.socket, float]:
    began = time.monotonic()
    try:
        sock = socket.create_connection((host, port), timeout)
    except TimeoutError as error:
        fact = f"nothing came back from {host}:{port} in {timeout:g} s: a black hole"
        fix = "a firewall drops what is sent there: open the port, or use the way that is allowed"
        raise Failed(step, fact, fix) from error
    except ConnectionRefusedError as error:
        fact = f"{host}:{port} refused the connection"
        fix = "start the server, or check the port and the address it listens on"
        raise Failed(step, fact, fix) from error
    except OSError as error:
        fix = "check the network and the address"
        raise Failed(step, f"{host}:{port} was not reached: {error}", fix) from error
    return sock, time.monotonic() - began


def _tunnel(
    sock: socket.socket, place: Place, proxy: SplitResult, shown: str, timeout: float
) -> None:
    target = f"{place.host}:{place.port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.username is not None:
        word = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(word).decode()}")
    try:
        status = _ask(sock, "\r\n".join([*lines, "", ""]).encode(), Deadline(timeout))
    except (OSError, ValueError) as error:
        fix = "check that it is an HTTP proxy and that it works"
        raise Failed("proxy", f"{shown} gave no answer to CONNECT: {error}", fix) from error
    if status == 407:
        told = "does not take these credentials" if proxy.username else "wants credentials"
        fix = "put them into the proxy's URL: http://USER:PASSWORD@HOST:PORT in HTTPS_PROXY or so"
        raise Failed("proxy", f"{shown} {told} (407)", fix)
    if not 200 <= status < 300:
        fix = "have the proxy allow CONNECT to it, or name the host in NO_PROXY to go directly"
        raise Failed("proxy", f"{shown} does not connect to {target} ({status})", fix)


def _ask(sock: socket.socket, request: bytes, deadline: Deadline) -> int:
    """Return the status of the answer."""
    sock.settimeout(deadline.remaining())
    sock.sendall(request)
    head = bytearray()
    while b"\r\n\r\n" not in head:
        sock.settimeout(deadline.remaining() or 0.001)
        byte = sock.recv(1)  # must not read beyond the head
        head += byte
        if not byte or len(head) > MAX_ANSWER:
            raise ValueError("it is cut short, or endless")
    parts = bytes(head).split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/"):
        raise ValueError("it is not HTTP")
    return int(parts[1])


def secure(
    report: Report,
    sock: socket.socket,
    place: Place,
    context: ssl.SSLContext | None,
    timeout: float,
) -> None:
    """Perform the TLS handshake, if there is one, and check the certificate."""
    if context is None:
        report.ok("tls", "none: the address is not wss://")
        return
    sock.settimeout(timeout)
    try:
        with context.wrap_socket(sock, server_hostname=place.host) as tls:
            version, certificate = tls.version(), tls.getpeercert()
    except ssl.SSLCertVerificationError as error:
        fact = f"the certificate is not trusted: {error.verify_message}"
        fix = "trust its authority by --cafile, or give the server one for this name with its chain"
        raise Failed("tls", fact, fix) from error
    except TimeoutError as error:
        fix = "check that the port speaks TLS; if not, the address is ws://"
        raise Failed("tls", f"no answer to TLS in {timeout:g} s", fix) from error
    except OSError as error:
        fix = "check that the port speaks TLS 1.2 or later; if it speaks none, use ws://"
        raise Failed("tls", f"TLS failed: {error}", fix) from error
    until = str((certificate or {}).get("notAfter", ""))
    if not until:
        report.warn("tls", f"{version}; the certificate was not checked", "leave out --insecure")
        return
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86_400
    if days < EXPIRES_SOON:
        report.warn("tls", f"{version}; the certificate ends on {until}", "renew it")
    else:
        report.ok("tls", f"{version}; the certificate is trusted, until {until}")
