"""What an evaluation shows: precision over recall, and how well every keypoint is placed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posenet.inference.coco_evaluation import Evaluation
from posenet.messages import pluralize
from posenet.visualization.matplotlib_figure import COLOURS, GREY, dress, new_figure, save, say, shades

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRECISION, KEYPOINTS = "precision_recall.png", "keypoints.png"
SHOWN = (0, 2, 4, 5, 6, 8, 9)
"""Which of COCO's ten OKS thresholds have a curve of their own: 0.50, 0.60, 0.70, 0.75, 0.80, 0.90, 0.95."""


def draw_charts(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write both charts into a folder; return where they are.

    Raises:
        ConfigError: matplotlib is missing.
    """
    paths = [folder / PRECISION, folder / KEYPOINTS]
    for figure, path in zip((precision_figure(evaluation), keypoint_figure(evaluation)), paths):
        save(figure, path)
    return paths


def precision_figure(evaluation: Evaluation) -> Figure:
    """Precision over recall at several OKS thresholds, and their mean, whose area is the AP."""
    figure, [panel] = new_figure(1, 1, (8.5, 5.5))
    dress(panel, f"Precision over recall, {pluralize(evaluation.images, 'image')}", "recall", "precision")
    panel.set_xlim(0, 1.01)
    panel.set_ylim(0, 1.02)
    precision = evaluation.precision
    if (precision < 0).all():
        say(panel, "nobody to find in these images")
        return figure
    recall = np.linspace(0, 1, precision.shape[1])
    for index, colour in zip(SHOWN, shades(len(SHOWN))):
        curve, oks = precision[index], 0.5 + 0.05 * index
        panel.plot(recall, curve, color=colour, linewidth=1.4, label=f"OKS {oks:.2f}: {curve.mean():.3f}")
    panel.plot(
        recall,
        precision.mean(axis=0),
        color="black",
        linewidth=2.5,
        label=f"mean of 0.50 to 0.95: {precision.mean():.3f}",
    )
    panel.legend(
        title="area (average precision)",
        frameon=False,
        fontsize=9,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        alignment="left",
    )
    return figure


def keypoint_figure(evaluation: Evaluation) -> Figure:
    """Bars: every keypoint's mean share in the OKS."""
    # Between dollar signs, matplotlib would read a name as a formula.
    known = {name.replace("$", r"\$"): value for name, value in evaluation.keypoints.items() if value >= 0}
    figure, [panel] = new_figure(1, 1, (7.5, 1.5 + 0.3 * max(len(known), 4)))
    dress(panel, "Mean OKS of each keypoint where it is labelled, 0 in people not found")
    if not known:
        say(panel, "no keypoint is labelled in these images")
        return figure
    mean = float(np.mean([*known.values()]))
    bars = panel.barh(list(known), list(known.values()), color=COLOURS[0], height=0.7)
    panel.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
    panel.axvline(mean, color=GREY, linestyle="--", linewidth=1)
    panel.text(mean, len(known) - 0.2, f" mean {mean:.2f}", color=GREY, va="center", fontsize=9)
    panel.set_ylim(len(known) + 0.2, -0.8)
    panel.set_xlim(0, 1.05)
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    return figure
