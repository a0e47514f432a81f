"""Charts of a COCO evaluation: precision over recall, and the mean OKS of every keypoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posenet.inference.evaluation import Evaluation
from posenet.messages import pluralize
from posenet.visualization.matplotlib_figure import (
    COLOURS,
    GREY,
    new_figure,
    save_figure,
    sequential_colours,
    show_no_data,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRECISION_RECALL_FILE = "precision_recall.png"
KEYPOINTS_FILE = "keypoints.png"
DRAWN_THRESHOLDS = (0, 2, 4, 5, 6, 8, 9)
"""Indices of those of COCO's ten OKS thresholds that have a curve: 0.50, 0.60, 0.70, 0.75, 0.80, 0.90 and 0.95."""


def chart_paths(folder: Path) -> list[Path]:
    """Paths of the charts that ``write_charts`` writes."""
    return [folder / PRECISION_RECALL_FILE, folder / KEYPOINTS_FILE]


def write_charts(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write both charts into a folder and return their paths; ``ConfigError`` if matplotlib is missing."""
    save_figure(precision_figure(evaluation), folder / PRECISION_RECALL_FILE)
    save_figure(keypoint_figure(evaluation), folder / KEYPOINTS_FILE)
    return chart_paths(folder)


def precision_figure(evaluation: Evaluation) -> Figure:
    """Draw precision over recall at several OKS thresholds, and their mean. The area under the mean is the AP."""
    figure, [axes] = new_figure(1, 1, (8.5, 5.5))
    style_axes(axes, f"Precision over recall, {pluralize(evaluation.images, 'image')}", "recall", "precision")
    axes.set_xlim(0, 1.01)
    axes.set_ylim(0, 1.02)
    precision = evaluation.precision
    if (precision < 0).all():
        show_no_data(axes, "no annotated people in these images")
        return figure
    recall = np.linspace(0, 1, precision.shape[1])
    for index, colour in zip(DRAWN_THRESHOLDS, sequential_colours(len(DRAWN_THRESHOLDS))):
        curve = precision[index]
        oks = 0.5 + 0.05 * index
        axes.plot(recall, curve, color=colour, linewidth=1.4, label=f"OKS {oks:.2f}: {curve.mean():.3f}")
    mean_label = f"mean of 0.50 to 0.95: {precision.mean():.3f}"
    axes.plot(recall, precision.mean(axis=0), color="black", linewidth=2.5, label=mean_label)
    legend = axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), alignment="left")
    legend.set_title("area (average precision)")
    return figure


def keypoint_figure(evaluation: Evaluation) -> Figure:
    """Draw the mean OKS of every keypoint as bars."""
    # matplotlib would read a name between dollar signs as a formula.
    scores = {name.replace("$", r"\$"): value for name, value in evaluation.keypoints.items() if value >= 0}
    figure, [axes] = new_figure(1, 1, (7.5, 1.5 + 0.3 * max(len(scores), 4)))
    style_axes(axes, "Mean OKS of each keypoint where it is labelled; people not found count as 0")
    if not scores:
        show_no_data(axes, "no labelled keypoints in these images")
        return figure
    names = list(scores)
    values = list(scores.values())
    mean = float(np.mean(values))
    bars = axes.barh(names, values, color=COLOURS[0], height=0.7)
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
    axes.axvline(mean, color=GREY, linestyle="--", linewidth=1)
    axes.text(mean, len(scores) - 0.2, f" mean {mean:.2f}", color=GREY, va="center", fontsize=9)
    axes.set_ylim(len(scores) + 0.2, -0.8)
    axes.set_xlim(0, 1.05)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure
