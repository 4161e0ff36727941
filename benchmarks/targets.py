"""Say what the figures must be, and what they should become, and judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .measures import EVERY_MEASURE
from .results import Pass

__all__ = ["TARGETS", "Target", "Verdict", "judge"]


@dataclass(frozen=True)
class Target:
    """Name the least that a figure must be, and the goal; or the most, if ``upper``.

    Without either it is only told.

    The figure is one of ``measure`` as it is, or its ratio to that of the variant ``base``; where
    ``over`` names another measure, to that.
    """

    measure: str
    variant: str
    must: float | None = None
    goal: float | None = None
    base: str | None = "raw"
    upper: bool = False
    over: str | None = None

    @property
    def kind(self) -> str:
        """What the figure is, in a few words."""
        if self.base is None:
            return EVERY_MEASURE[self.measure].unit
        over = EVERY_MEASURE[self.over].title if self.over else None
        if over is None:
            return f"ratio to {self.base}"
        own = self.base == self.variant
        return f"ratio to its {over}" if own else f"ratio to {over} of {self.base}"

    def meets(self, figure: float, limit: float) -> bool:
        """Whether a figure is on the right side of a limit."""
        return figure <= limit if self.upper else figure >= limit


_BULK = ("upload", "download")


def _spark(
    measure: str,
    over: str,
    must: Mapping[int, float | None],
    goals: Mapping[int, float] | None = None,
) -> list[Target]:
    """Hold one figure to another at the distances that are named."""
    goals = goals or {}
    return [
        Target(
            *(f"{measure}-{delay}ms", "pyspark", must.get(delay), goals.get(delay)),
            base="pyspark",
            over=f"{over}-{delay}ms",
        )
        for delay in must or goals
    ]


TARGETS = (
    Target("upload", "wsmux", 6.0, 10.0),
    Target("upload", "wsmux-python", 1.0, 1.5),
    Target("download", "wsmux", 0.9, 1.5),
    *(Target(measure, "wsmux", 0.25, 0.5, base="tcp") for measure in _BULK),
    Target("ping-1k", "wsmux", 1.0, 1.8),
    *(
        Target(measure, "wsmux", 1.5, 3.0, base="wsmux", over="ping-1k")
        for measure in ("ping-1k-10", "ping-1k-100")
    ),
    Target("ping-1k", "wsmux", 2.0, 4.0, base="grpcio"),
    Target("ping-1k-10", "wsmux", 3.0, 6.0, base="grpcio"),
    Target("ping-1k-100", "wsmux", 4.0, 6.0, base="grpcio"),
    Target("echo", "wsmux", 2.5, 4.0, base="grpcio"),
    Target("opens", "wsmux", 4.0, 8.0, base="grpcio"),
    Target("ping-1k", "wsmux-yamux", 6.0, 10.0, base="libp2p-yamux"),
    Target("echo", "wsmux-yamux", 6.0, 10.0, base="libp2p-yamux"),
    Target("opens", "wsmux-yamux", 3.0, 5.0, base="libp2p-yamux"),
    *(Target(measure, "wsmux-yamux", 3.0, base="libp2p-yamux") for measure in _BULK),
    Target("opens", "wsmux", 5.0, 10.0),
    Target("opens", "wsmux", 500.0, base=None),
    Target("opens", "wsmux", 0.2, 0.4, base="wsmux", over="ping-1k"),
    *(
        Target(f"idle-stream-{side}", "wsmux", 2.0, 1.0, base=None, upper=True)
        for side in ("server", "client")
    ),
    *(
        Target(f"idle-connection-{side}", "wsmux", 128.0, 64.0, base=None, upper=True)
        for side in ("server", "client")
    ),
    Target("tail-p99", "wsmux", 0.25, 0.1, base="naive", upper=True),
    Target("tail-window", "wsmux", 200.0, 100.0, base=None, upper=True),
    Target("among-idle", "wsmux", 80.0, 100.0, base=None),
    Target("connections-200", "wsmux", 0.6, 0.9, base="wsmux", over="connections-10"),
    *(Target(measure, "wsmux-tls", 0.3, 0.45, base="wsmux") for measure in _BULK),
    Target("ping-1k", "wsmux-tls", 0.75, 0.9, base="wsmux"),
    *(
        Target(f"watched-{measure}", "wsmux-watched", 95.0, base=None)
        for measure in (*_BULK, "ping", "opens")
    ),
    Target("upload", "wsmux-tls", 3.0, 4.0, base="raw-tls"),
    Target("download", "wsmux-tls", 0.75, 1.0, base="raw-tls"),
    *(
        Target(measure, variant, 0.8, base="wsmux")
        for variant in ("wsmux-yamux", "wsmux-bymux")
        for measure in (*_BULK, "ping-1k")
    ),
    Target("rpc-1", "river", 0.4, 0.6, base="raw-calls"),
    Target("rpc-32", "river", 1.0, 1.5, base="replit-river"),
    *(
        Target(measure, "river", 1.0, base="replit-river")
        for measure in ("rpc-1", "stream", "subscription", "echo-64k")
    ),
    *(
        Target(measure, "river", 64.0, base=None, upper=True)
        for measure in ("idle-server", "idle-client")
    ),
    *(
        Target(f"twins-{count}", variant, 0.3, base=base)
        for variant, base in (("relay", "link-echo"), ("relay-redis", "relay"))
        for count in (1, 10, 100)
    ),
    Target("kept", "relay-redis", 0.3, base="relay"),
    *(Target(each, "relay", 3.0, base="raw-trips", upper=True) for each in ("trip", "call")),
    Target("idle-twin", "relay", 128.0, base=None, upper=True),
    Target("flood", "relay-limit", 120.0, base=None, upper=True),
    *_spark("256x1", "sync", {0: 3.3, 1: 30, 5: 90}, {0: 4, 1: 35, 5: 110}),
    *_spark("32x512", "sync", {0: 80, 1: 700, 5: 2000}, {0: 100, 1: 800, 5: 3000}),
    *_spark("sync", "bare-sync", dict.fromkeys((0, 1, 5))),  # what sessions, calls, threads cost
    *_spark("spark-256x1", "spark-sync", {}, {0: 4, 1: 35, 5: 110}),
    *_spark("spark-32x512", "spark-sync", {}, {0: 100, 1: 800, 5: 3000}),
    *_spark("spark-arrow", "spark-identity", {}, {0: 0.6}),
    # A hundredth of a round trip that a bare WebSocket takes, or less.
    *_spark("latest-offset", "bare-sync", {5: 100}, {5: 100}),
    *_spark("spark-read", "spark-read-flight", {0: 0.9}, {0: 1.0}),
    *_spark("spark-write", "spark-write-flight", {0: 0.7}, {0: 0.9}),
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
        if must is None:
            return True
        return self.figure is not None and self.target.meets(self.figure, must)

    @property
    def goal_met(self) -> bool:
        """Whether it is what it should become; so without a goal if it is what it must be."""
        target = self.target
        if target.goal is None:
            return self.met
        return self.figure is not None and target.meets(self.figure, target.goal)

    @property
    def name(self) -> str:
        """What is judged, without how."""
        return f"{self.target.variant}, {EVERY_MEASURE[self.target.measure].title}"

    def written(self, value: float) -> str:
        """Return a figure with its unit."""
        target = self.target
        if target.base is None:
            unit = EVERY_MEASURE[target.measure].unit
            return f"{value:,.1f} {unit}" if abs(value) < 10 else f"{value:,.0f} {unit}"
        return f"{value:.2f} x {target.kind.removeprefix('ratio to ')}"

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
        target = self.target
        return {
            **{name: getattr(target, name) for name in ("measure", "variant", "must", "goal")},
            **{"upper": target.upper, "kind": target.kind, "pinned": self.pinned},
            **{"figure": self.figure, "figures": list(self.figures)},
            **{"met": self.met, "goal_met": self.goal_met},
        }


def judge(passes: Sequence[Pass]) -> list[Verdict]:
    """Return the verdicts on every target that was measured.

    Targets are for the pinned pass, where client and server do not compete for a core; the other
    is judged only when it was the only one. A failure of the variant itself misses its target; of
    its base, the repetitions that are left are judged.
    """
    verdicts = []
    pinned = [run for run in passes if run.pinned]
    for run in pinned or passes:
        for target in TARGETS:
            if target.base:
                values = run.ratios(target.measure, target.variant, target.base, target.over)
            else:
                values = run.taken(target.measure, target.variant)
            failed = None in run.figures.get(target.measure, {}).get(target.variant, [])
            if target.base:
                failed &= target.base in run.figures.get(target.over or target.measure, {})
            if values or failed:
                verdicts.append(Verdict(target, run.pinned, () if failed else tuple(values)))
    return verdicts
