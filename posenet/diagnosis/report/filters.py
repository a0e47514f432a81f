"""Numbers and shapes of the page, as filters of the templates; ``templates/charts.html`` draws the charts with them.

Charts have percentages of their width and height as coordinates, so that they need no script to fit any screen.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

NOTHING = "\N{EN DASH}"
"""Stands for a value that there was nothing to compute from."""


def format_ap(value: float) -> str:
    return NOTHING if value < 0 else f"{value:.3f}"


def format_gain(value: float) -> str:
    """A difference with its sign."""
    text = f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
    return text[1:] if float(text[1:]) == 0 else text


def format_share(value: float) -> str:
    return "<0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """``1,234 images``, with a separator of thousands."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def percent(value: float) -> str:
    """A coordinate: where a value is between 0 (0 %) and 1 (100 %)."""
    return f"{100 * value:.4g}%"


def stack(values: Iterable[tuple[str, float]], total: float = 1.0) -> list[tuple[str, str, str, float]]:
    """The parts of a stacked bar: kind, start and width as coordinates, and the share of ``total``."""
    parts = []
    start = 0.0
    for kind, value in values:
        share = max(value, 0.0) / total if total > 0 else 0.0
        parts.append((kind, percent(start), percent(share), share))
        start += share
    return parts


def area_path(values: np.ndarray) -> str:
    """The area below values from 0 to 1 at equal distances, as a path in a frame of 100 by 100."""
    xs = np.linspace(0, 100, len(values))
    points = "L".join(f"{x:.4g} {100 - 100 * y:.4g}" for x, y in zip(xs, values))
    return f"M0 100L{points}L100 100Z"


FILTERS = {
    "ap": format_ap,
    "gain": format_gain,
    "count": "{:,}".format,
    "share": format_share,
    "pluralize": pluralize,
    "percent": percent,
    "stack": stack,
    "area": area_path,
}
