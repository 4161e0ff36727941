"""Say what the figures must be, and what they should become, and judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from .measures import EVERY_MEASURE
from .results import Pass


@dataclass(frozen=True)
class Target:
    """Name the least that a figure must be, and the goal; or the most, if ``upper``.

    Without either it is only told.

    The figure is one of ``measure`` as it is, or its ratio to that of the variant ``base``; where
    ``over`` names another measure, to that. ``unpinned`` are ``must`` and ``goal`` of processes
    that may run on any core, where that is judged, too.
    """

    measure: str
    variant: str
    must: float | None = None
    goal: float | None = None
    base: str | None = "raw"
    upper: bool = False
    over: str | None = None
    unpinned: tuple[float, float] | None = None

    @property
    def kind(self) -> str:
        """What the figure is, in a few words."""
        if self.base is None:
            return EVERY_MEASURE[self.measure].unit
        if self.over is None:
            return f"ratio to {self.base}"
        over, own = EVERY_MEASURE[self.over].title, self.base == self.variant
        return f"ratio to its {over}" if own else f"ratio to {over} of {self.base}"

    def where_unpinned(self) -> Target:
        """Return the same with the limits of processes that may run on any core."""
        must, goal = self.unpinned or (self.must, self.goal)
        return replace(self, must=must, goal=goal)

    def meets(self, figure: float | None, limit: float) -> bool:
        """Whether there is a figure, and it is on the right side of a limit."""
        return figure is not None and (figure <= limit if self.upper else figure >= limit)


_BULK = ("upload", "download")

_itself = partial(Target, base=None)
_at_most = partial(Target, base=None, upper=True)


def _spark(
    measure: str, over: str, must: Mapping[int, float | None], goals: Mapping[int, float]
) -> list[Target]:
    """Hold one figure to another at the distances that are named."""
    return [
        Target(
            *(f"{measure}-{delay}ms", "pyspark", must.get(delay), goals.get(delay), "pyspark"),
            over=f"{over}-{delay}ms",
        )
        for delay in must or goals
    ]


TARGETS = (
    Target("upload", "wsmux", 6, 10),
    Target("upload", "wsmux-python", 1, 1.5),
    Target("download", "wsmux", 1.1, 1.5, unpinned=(1, 1.3)),
    *(Target(measure, "wsmux", 0.25, 0.5, "tcp") for measure in _BULK),
    Target("ping-1k", "wsmux", 1.1, 1.8, unpinned=(1.4, 2)),
    Target("ping-1k-10", "wsmux", 1.5, 3, "wsmux", over="ping-1k"),
    Target("ping-1k-100", "wsmux", 1.5, 3, "wsmux", over="ping-1k"),
    Target("ping-1k", "wsmux", 1.8, 4, "grpcio", unpinned=(2.3, 4)),
    Target("ping-1k-10", "wsmux", 3.5, 6, "grpcio", unpinned=(3.5, 6)),
    Target("ping-1k-100", "wsmux", 5, 6, "grpcio", unpinned=(4.5, 6)),
    Target("echo", "wsmux", 2.5, 4, "grpcio", unpinned=(2.2, 3)),
    Target("opens", "wsmux", 4, 8, "grpcio", unpinned=(4, 6)),
    Target("tail-p99", "wsmux", 0.9, 0.5, "grpcio", upper=True, unpinned=(1.2, 0.8)),
    Target("ping-1k", "wsmux-yamux", 6, 10, "libp2p-yamux", unpinned=(6, 10)),
    Target("echo", "wsmux-yamux", 6, 10, "libp2p-yamux"),
    Target("opens", "wsmux-yamux", 4, 5, "libp2p-yamux", unpinned=(4, 5)),
    *(Target(measure, "wsmux-yamux", 3, base="libp2p-yamux") for measure in _BULK),
    Target("opens", "wsmux", 5, 10, unpinned=(4.5, 8)),
    _itself("opens", "wsmux", 500),
    Target("opens", "wsmux", 0.2, 0.4, "wsmux", over="ping-1k"),
    *(_at_most(f"idle-stream-{side}", "wsmux", 2, 1) for side in ("server", "client")),
    *(_at_most(f"idle-connection-{side}", "wsmux", 128, 64) for side in ("server", "client")),
    Target("tail-p99", "wsmux", 0.25, 0.1, "naive", upper=True),
    _at_most("tail-window", "wsmux", 200, 100),
    _itself("among-idle", "wsmux", 80, 100),
    *(
        Target(f"connections-{count}", "wsmux", must, 0.9, "wsmux", over="connections-10")
        for count, must in ((200, 0.7), (1000, 0.5))
    ),
    *(Target(measure, "wsmux-tls", 0.3, 0.45, "wsmux") for measure in _BULK),
    Target("ping-1k", "wsmux-tls", 0.75, 0.9, "wsmux"),
    *(_itself(f"watched-{measure}", "wsmux-watched", 95) for measure in (*_BULK, "ping", "opens")),
    *(
        _itself(f"resumable-{measure}", "wsmux-resumable", 97, unpinned=(97, 100))
        for measure in (*_BULK, "ping")
    ),
    _at_most("resumable-cut", "wsmux-resumable", 250),
    *(_at_most(f"resumable-{side}", "wsmux-resumable", 4) for side in ("server", "client")),
    Target("upload", "wsmux-tls", 3, 4, "raw-tls"),
    Target("download", "wsmux-tls", 0.75, 1, "raw-tls"),
    *(
        Target(measure, variant, 0.8, base="wsmux")
        for variant in ("wsmux-yamux", "wsmux-bymux")
        for measure in (*_BULK, "ping-1k")
    ),
    Target("rpc-1", "river", 0.4, 0.6, "raw-calls"),
    Target("rpc-32", "river", 1, 1.5, "replit-river"),
    *(
        Target(measure, "river", 1, base="replit-river")
        for measure in ("rpc-1", "stream", "subscription", "echo-64k")
    ),
    *(_at_most(measure, "river", 64) for measure in ("idle-server", "idle-client")),
    *(
        Target(f"twins-{count}", variant, 0.3, base=base)
        for variant, base in (("relay", "link-echo"), ("relay-redis", "relay"))
        for count in (1, 10, 100)
    ),
    Target("kept", "relay-redis", 0.3, base="relay"),
    *(Target(each, "relay", 3, base="raw-trips", upper=True) for each in ("trip", "call")),
    _at_most("idle-twin", "relay", 128),
    _at_most("flood", "relay-limit", 120),
    *_spark("256x1", "sync", {0: 3.3, 1: 30, 5: 90}, {0: 4, 1: 35, 5: 110}),
    *_spark("32x512", "sync", {0: 80, 1: 700, 5: 2000}, {0: 100, 1: 800, 5: 3000}),
    *_spark(
        "sync", "bare-sync", dict.fromkeys((0, 1, 5)), {}
    ),  # what sessions, calls, threads cost
    *_spark("spark-256x1", "spark-sync", {}, {0: 4, 1: 35, 5: 110}),
    *_spark("spark-32x512", "spark-sync", {}, {0: 100, 1: 800, 5: 3000}),
    *_spark("spark-arrow", "spark-identity", {}, {0: 0.6}),
    # A hundredth of a round trip that a bare WebSocket takes, or less.
    *_spark("latest-offset", "bare-sync", {5: 100}, {5: 100}),
    *_spark("read", "read-flight", {0: 0.5}, {0: 1}),
    *_spark("write", "write-flight", {0: 0.6}, {0: 0.9}),
    *_spark("spark-read", "spark-read-flight", {0: 0.9}, {0: 1}),
    *_spark("spark-write", "spark-write-flight", {0: 0.7}, {0: 0.9}),
    _at_most("cluster-open", "gunicorn", 10),
    _at_most("cluster-held", "gunicorn", 4096, 1024),
    _at_most("health", "gunicorn", 20),
)


@dataclass(frozen=True)
class Verdict:
    """How one target fared in one pass; there are no figures where a measurement failed."""

    target: Target
    pinned: bool
    figures: tuple[float, ...]

    @property
    def figure(self) -> float | None:
        """The median."""
        return median(self.figures) if self.figures else None

    @property
    def met(self) -> bool:
        """Whether the median is what it must be."""
        must = self.target.must
        return must is None or self.target.meets(self.figure, must)

    @property
    def goal_met(self) -> bool:
        """Whether it is what it should become; so without a goal if it is what it must be."""
        goal = self.target.goal
        return self.met if goal is None else self.target.meets(self.figure, goal)

    @property
    def name(self) -> str:
        """What is judged, without how."""
        return f"{self.target.variant}, {EVERY_MEASURE[self.target.measure].title}"

    def written(self, value: float) -> str:
        """Return a figure with its unit."""
        kind = self.target.kind
        if self.target.base is None:
            return f"{value:,.1f} {kind}" if abs(value) < 10 else f"{value:,.0f} {kind}"
        return f"{value:.2f} x {kind.removeprefix('ratio to ')}"

    def __str__(self) -> str:
        target = self.target
        figure = "failed" if self.figure is None else self.written(self.figure)
        spread = must = goal = ""
        if len(self.figures) > 1:
            spread = f" ({min(self.figures):,.3g}-{max(self.figures):,.3g})"
        if target.must is not None:
            must = f", wanted {'at most ' if target.upper else ''}{target.must:g}"
        if target.goal is not None:
            goal = f"; goal {target.goal:g} {'met' if self.goal_met else 'missed'}"
        return (
            f"{'MISSED' if not self.met else 'met   ' if must else '      '}  {self.name}, "
            f"{'pinned' if self.pinned else 'not pinned'}: "
            f"{figure}{must}{goal}{spread}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        of_target = ("measure", "variant", "must", "goal", "upper", "kind")
        own = ("pinned", "figure", "figures", "met", "goal_met")
        told = {name: getattr(self.target, name) for name in of_target}
        return told | {name: getattr(self, name) for name in own}


def judge(passes: Sequence[Pass]) -> list[Verdict]:
    """Return the verdicts on every target that was measured.

    Most targets are for the pinned pass, where client and server do not compete for a core; in the
    other they are judged only when it was the only one. A failure of the variant itself misses its
    target; of its base, the repetitions that are left are judged.
    """
    verdicts = []
    any_pinned = any(run.pinned for run in passes)
    for run in passes:
        if run.pinned:
            targets = list(TARGETS)
        else:
            targets = [each.where_unpinned() for each in TARGETS if each.unpinned or not any_pinned]
        for target in targets:
            measure, variant, base = target.measure, target.variant, target.base
            values = run.taken(measure, variant)
            failed = None in run.figures.get(measure, {}).get(variant, [])
            if base:
                values = run.ratios(measure, variant, base, target.over)
                failed &= base in run.figures.get(target.over or measure, {})
            if values or failed:
                verdicts.append(Verdict(target, run.pinned, () if failed else tuple(values)))
    return verdicts
