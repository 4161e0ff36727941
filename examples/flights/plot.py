"""Draw delays by hour and airport, and by weather, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .check import SKIES, Groups, mean_delays

__all__ = ["plot"]

# Told apart by people who see colours otherwise, too.
COLOURS = {"EWR": "#0072B2", "JFK": "#D55E00", "LGA": "#009E73"}
NAMES = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}

# Flights of an hour below which their mean says little.
FEWEST = 30


def plot(delays: Groups, path: Path) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
    by_hour, by_sky = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    airports = sorted({str(origin) for origin, _, _ in delays})
    _draw_hours(by_hour, delays, airports)
    _draw_skies(by_sky, delays, airports)
    for axes in (by_hour, by_sky):
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0)
    flights = sum(values[0] for values in delays.values())
    figure.suptitle(
        f"Departures from New York in 2013: mean delay of {flights:,} flights",
        fontsize=14,
        fontweight="bold",
    )
    figure.savefig(path, format="png")


def _draw_hours(axes: Any, delays: Groups, airports: list[str]) -> None:
    means = mean_delays(delays, ("origin", "hour"))
    counts: dict[tuple[str | int, ...], int] = {}
    for (origin, hour, _), values in delays.items():
        counts[origin, hour] = counts.get((origin, hour), 0) + values[0]
    least = min(FEWEST, max(counts.values()))
    for origin in airports:
        points = sorted(
            (int(hour), mean)
            for (place, hour), mean in means.items()
            if place == origin and counts[place, hour] >= least
        )
        hours = [hour for hour, _ in points]
        label = NAMES.get(origin, origin)
        axes.plot(
            hours,
            [mean for _, mean in points],
            marker="o",
            markersize=4,
            linewidth=2,
            color=COLOURS.get(origin),
            label=label,
        )
    axes.set_xticks(range(0, 24, 3), [f"{hour}:00" for hour in range(0, 24, 3)])
    axes.set_xlim(4, 24)
    axes.set_xlabel("scheduled hour of departure")
    axes.set_ylabel("mean delay in minutes")
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.legend(frameon=False, loc="upper left")
    axes.set_title("by hour and airport", loc="left")


def _draw_skies(axes: Any, delays: Groups, airports: list[str]) -> None:
    means = mean_delays(delays, ("origin", "sky"))
    skies = [sky for sky in SKIES if any(sky == each for _, each in means)]
    width = 0.8 / max(len(airports), 1)
    for place, origin in enumerate(airports):
        shown = [(at, means[origin, sky]) for at, sky in enumerate(skies) if (origin, sky) in means]
        bars = axes.bar(
            [at + (place - (len(airports) - 1) / 2) * width for at, _ in shown],
            [mean for _, mean in shown],
            width=width * 0.92,
            color=COLOURS.get(origin),
            label=NAMES.get(origin, origin),
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8, color="#444444", padding=2)
    axes.set_xticks(range(len(skies)), skies)
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set_xlabel("poor sight: below 5 miles; wind: 20 miles an hour and up")
    axes.set_title("by weather and airport", loc="left")
