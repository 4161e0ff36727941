"""Choose what is measured of what was asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wsmux.cli.terminal import CommandError, talk

from .every_measure import MEASURES_OF
from .peer import Peer
from .peers import find_peers
from .processes import cores
from .schedule import count_steps

__all__ = ["Chosen", "Order", "chosen", "orders"]


class Chosen(NamedTuple):
    """Name what is measured of one kind."""

    peers: list[Peer]
    measures: list[str]


class Order(NamedTuple):
    """Name what one pass measures."""

    peers: list[Peer]
    measures: list[str]
    pinned: bool


def chosen(args: argparse.Namespace) -> list[Chosen]:
    """Return what to measure, of each kind that was asked for.

    Raises:
        CommandError: there is no such thing, or nothing is left.
    """
    kinds = _kinds(args)
    # First the measures: what is misspelt there is the answer.
    _check_names("measure", args.measures, [name for kind in kinds for name in MEASURES_OF[kind]])
    peers = [peer for peer in find_peers().values() if peer.kind in kinds]
    _check_names("variant", args.peers, [peer.name for peer in peers])
    _check_names("protocol", args.protocol, [peer.protocol for peer in peers if peer.protocol])
    result = []
    for kind in kinds:
        measures = _measures(args, kind)
        present = _peers(args, [peer for peer in peers if peer.kind == kind], measures)
        if present:
            result.append(Chosen(present, measures))
    if not result:
        raise CommandError("nothing is left to measure")
    return result


def _kinds(args: argparse.Namespace) -> list[str]:
    if args.all:
        if args.rpc or args.bus:
            raise CommandError("--all measures calls and relays, too", status=2)
        return list(MEASURES_OF)
    if args.rpc and args.bus:
        raise CommandError("--rpc and --bus are measured one after the other", status=2)
    if args.rpc and args.protocol:
        raise CommandError("--rpc measures calls, which have no wire to choose", status=2)
    if args.bus and args.protocol:
        raise CommandError("--bus measures relays, which have no wire to choose", status=2)
    return ["rpc" if args.rpc else "bus" if args.bus else "streams"]


def _check_names(what: str, names: Sequence[str] | None, known: Iterable[str]) -> None:
    there = dict.fromkeys(known)
    unknown = [name for name in names or () if name not in there]
    if unknown:
        raise CommandError(f"no {what} {unknown[0]!r}; there are {', '.join(there)}", status=2)


def _measures(args: argparse.Namespace, kind: str) -> list[str]:
    """Return the named ones; else all, without those that take long if not asked for all."""
    return [
        name
        for name, measure in MEASURES_OF[kind].items()
        if (name in args.measures if args.measures else args.all or not measure.heavy)
    ]


def _peers(args: argparse.Namespace, known: Sequence[Peer], measures: Sequence[str]) -> list[Peer]:
    """Return the named ones, or the usual ones, and those of further wires, that can be measured.

    Those that have none of the figures are left out silently.
    """
    present = []
    for peer in known:
        named = peer.name in (args.peers or ())
        usual = not args.peers and (args.all or not peer.on_demand)
        if not (named or usual or peer.protocol in (args.protocol or ())):
            continue
        if all(name in peer.leaves_out for name in measures):
            continue
        if reason := peer.lacks():
            if named:
                raise CommandError(f"{peer.name} cannot be measured: {reason}")
            talk(f"{peer.name} is left out: {reason}")
        else:
            present.append(peer)
    return present


def orders(args: argparse.Namespace, repetitions: int) -> tuple[list[Order], int]:
    """Return the passes to run, and how many figures they take.

    What takes long is in one of them only, that which is judged.
    """
    from .every_measure import EVERY_MEASURE

    wanted = {"both": [True, False], "yes": [True], "no": [False]}[args.pin]
    if True in wanted and len(cores()) < 2:
        talk("the processes cannot be pinned: fewer than two cores, or no such call here")
        wanted = [False]
    result = []
    for peers, measures in chosen(args):
        for pinned in wanted:
            taken = [
                name for name in measures if pinned is wanted[0] or not EVERY_MEASURE[name].heavy
            ]
            if taken:
                result.append(Order(peers, taken, pinned))
    return result, sum(count_steps(each.peers, each.measures, repetitions) for each in result)
