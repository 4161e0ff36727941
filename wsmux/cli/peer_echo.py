"""Answer echoes as a twin, or ask another twin for some: ``wsmux peer echo``.

Shows whether two twins reach each other, and how fast, without a gateway, Redis or a service.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import threading
import time

from ..bus.client import Client
from ..bus.errors import BusError
from ..bus.services import ServiceRequest
from ..bus.wire.address import Address, parse_address
from ..bus.wire.keys import Identity
from .terminal import CommandError, emit, talk

__all__ = ["ask", "serve"]

COMMAND = "echo"


def serve(identity: Identity, texts: list[str], args: argparse.Namespace) -> int:
    """Answer echoes until Ctrl-C."""

    def echo(payload: object, request: ServiceRequest) -> object:
        sealed = "encrypted" if request.encrypted else "plain"
        talk(f"{request.source.shown()}: {len(request.data)} bytes, {sealed}")
        return payload

    with Client(identity, args.relay, texts, twin=args.twin, gateway=True) as client:
        client.serve({COMMAND: echo})
        twin = client.address.twin
        emit(json.dumps({"twin": twin, "relays": args.relay}) if args.json else str(twin))
        talk(f"twin {twin} answers echoes; Ctrl-C ends it")
        threading.Event().wait()
    return 0


def ask(identity: Identity, texts: list[str], args: argparse.Namespace) -> int:
    """Ask another twin for echoes; return 1 if any of them failed."""
    to = _address(args.to)
    if args.count < 1 or args.size < 0:
        raise CommandError("--count must be at least 1, and --size at least 0", status=2)
    with Client(identity, args.relay, texts, twin=args.twin) as client:
        times = [_once(client, to, args) for _ in range(args.count)]
    good = [each for each in times if each is not None]
    if args.json:
        emit(json.dumps({"to": str(to), "milliseconds": times}))
    else:
        middle = f", median {statistics.median(good):.1f} ms" if good else ""
        emit(f"{len(good)} of {len(times)} echoes from {to.shown()}{middle}")
    return 0 if len(good) == len(times) else 1


def _once(client: Client, to: Address, args: argparse.Namespace) -> float | None:
    """Return the milliseconds of one echo, or ``None`` if it failed."""
    payload = secrets.token_hex((args.size + 1) // 2)[: args.size]
    began = time.perf_counter()
    try:
        answer = client.call(to, COMMAND, payload, timeout=args.timeout)
    except BusError as error:
        talk(f"{to.shown()}: {error}")
        return None
    passed = 1000 * (time.perf_counter() - began)
    if answer != payload:
        talk(f"{to.shown()}: the answer is not what was sent")
        return None
    talk(f"{to.shown()}: {len(payload)} bytes in {passed:.1f} ms")
    return passed


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise CommandError(f"--to: {error}", status=2) from error
