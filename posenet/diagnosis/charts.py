"""Charts of a diagnosis as image files: the AP that each kind of error costs, as a bar and over recall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posenet.diagnosis.result import CORRECTIONS, RECALLS, UNCORRECTED, Diagnosis
from posenet.visualization.matplotlib_figure import COLOURS, GREY, new_figure, save_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS_FILE = "costs.png"
PRECISION_FILE = "precision.png"
_AP_COLOUR = GREY
_COLOURS = dict(zip(CORRECTIONS, [*COLOURS, "#8c6d31"]))
_MIN_LABELLED_COST = 0.02
"""Narrower segments of the bar have no number."""


def chart_paths(folder: Path) -> list[Path]:
    """Paths of the charts that ``write_charts`` writes."""
    return [folder / COSTS_FILE, folder / PRECISION_FILE]


def write_charts(diagnoses: Sequence[Diagnosis], folder: Path) -> list[Path]:
    """Write both charts into a folder and return their paths; ``ConfigError`` if matplotlib is missing."""
    save_figure(costs_figure(diagnoses), folder / COSTS_FILE)
    save_figure(precision_figure(diagnoses), folder / PRECISION_FILE)
    return chart_paths(folder)


def costs_figure(diagnoses: Sequence[Diagnosis]) -> Figure:
    """Draw a stacked bar for every results file: its AP, and what each kind of error costs, up to 1."""
    figure, [axes] = new_figure(1, 1, (10, 1.8 + 0.6 * len(diagnoses)))
    style_axes(axes, "AP, and the AP that each kind of error costs, corrected in this order")
    names = [_plain(diagnosis.name) for diagnosis in diagnoses]
    positions = np.arange(len(diagnoses))
    left = np.zeros(len(diagnoses))
    for label, colour in [("AP", _AP_COLOUR), *_COLOURS.items()]:
        widths = np.array([diagnosis.ap if label == "AP" else diagnosis.costs[label] for diagnosis in diagnoses])
        bars = axes.barh(positions, widths, left=left, color=colour, height=0.6, label=label)
        numbers = [f"{width:.3f}" if width >= _MIN_LABELLED_COST else "" for width in widths]
        axes.bar_label(bars, labels=numbers, label_type="center", fontsize=8, color="white")
        left += widths
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, fontsize=9, ncols=len(CORRECTIONS) + 1, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure


def precision_figure(diagnoses: Sequence[Diagnosis]) -> Figure:
    """Draw precision over recall, mean over the OKS thresholds, with the area that each correction adds."""
    figure, panels = new_figure(1, len(diagnoses), (1.5 + 5 * len(diagnoses), 4.5))
    for axes, diagnosis in zip(panels, diagnoses):
        style_axes(axes, _plain(diagnosis.name), "recall", "precision, mean over OKS 0.50 to 0.95")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.01)
        below = diagnosis.precision[UNCORRECTED].mean(axis=0)
        axes.fill_between(RECALLS, 0, below, color=_AP_COLOUR, linewidth=0, label=f"AP {diagnosis.ap:.3f}")
        for kind, colour in _COLOURS.items():
            above = diagnosis.precision[kind].mean(axis=0)
            label = f"{kind} {diagnosis.costs[kind]:+.3f}"
            axes.fill_between(RECALLS, below, above, color=colour, linewidth=0, label=label)
            below = above
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _plain(name: str) -> str:
    """A name that matplotlib does not read as a formula."""
    return name.replace("$", r"\$")
