"""The curves of a training run as an image file, drawn by matplotlib if it is installed."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posenet.errors import DataError
from posenet.files import read_input, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_FILE = "log.jsonl"
CURVES_FILE = "curves.png"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Palette of Okabe and Ito, which colour-blind people can distinguish."""
MAX_POINTS = 400
"""Points per curve; longer series are averaged in groups."""
MAX_POINTS_WITH_MARKERS = 30
"""Curves with at most this many points have a dot at each of them."""
SCORES = ("AP", "AP50", "AP75", "AR")

LogEntry = dict[str, Any]
"""One line of ``log.jsonl``."""
RunLog = dict[str, list[LogEntry]]
"""The entries of a log in the order of their steps: ``train``, every few steps; ``epoch``; and ``skip``, bad steps.
``x`` is their position on the x axis."""


def has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def read_log(path: Path) -> RunLog:
    """Read a run's ``log.jsonl``. Steps that a resumed run repeats count once, and incomplete lines are left out."""
    log: RunLog = {"train": [], "epoch": [], "skip": []}
    for line in read_input(path).decode(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            entries = log[entry["kind"]]
        except (ValueError, KeyError, TypeError):
            continue  # a line that is incomplete because the run was killed, or an entry that is not drawn
        while entries and entries[-1]["step"] >= entry["step"]:
            entries.pop()
        entries.append(entry)
    _add_positions(log)
    return log


def _add_positions(log: RunLog) -> None:
    """Add the position of every entry on the x axis, in epochs, or in steps until the first epoch has ended."""
    entries = [*log["train"], *log["epoch"], *log["skip"]]
    positions = np.array([entry["step"] for entry in entries], np.float64)
    if log["epoch"]:
        ends = [(0, 0), *((entry["step"], entry["epoch"]) for entry in log["epoch"])]
        steps, epochs = np.array(ends, np.float64).T
        # Entries after the last epoch continue at its pace.
        pace = (epochs[-1] - epochs[-2]) / max(steps[-1] - steps[-2], 1)
        positions = np.interp(positions, steps, epochs) + pace * np.maximum(positions - steps[-1], 0)
    for entry, position in zip(entries, positions.tolist()):
        entry["x"] = position


def write_curves(folder: Path) -> Path:
    """Draw the curves of the run in ``folder`` to ``CURVES_FILE`` there, and return its path.

    ``DataError`` if the log has nothing to draw yet.
    """
    figure = training_figure(read_log(folder / LOG_FILE), folder.resolve().name)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(folder / CURVES_FILE, buffer.getvalue())
    return folder / CURVES_FILE


def training_figure(log: RunLog, run_name: str) -> Figure:
    """Draw the loss, the scores if there are any, the learning rate, the gradient norm and the speed."""
    from matplotlib.figure import Figure

    if not log["train"] and not log["epoch"]:
        raise DataError(f"the log of {run_name} contains nothing to draw yet; wait for the run's first log line")
    panels = [_plot_loss, _plot_learning_rate, _plot_speed]
    if _entries_with(log["epoch"], "AP"):
        panels.insert(1, _plot_scores)
    columns = 2
    rows = math.ceil(len(panels) / columns)
    width, height = 5.2 * columns, 4.2 * rows  # inches
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    figure.suptitle(_title(log, run_name), fontsize=13, fontweight="bold", parse_math=False)
    end = max(entry["x"] for entry in log["train"] + log["epoch"])
    for number, plot in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.grid(alpha=0.25)
        axes.set_xlabel("epoch" if log["epoch"] else "step")
        plot(axes, log)
        axes.set_xlim(0, max(1.02 * end, 1))
        both = [each for each in figure.axes if each.get_position().bounds == axes.get_position().bounds]
        curves = [curve for each in both for curve in each.get_lines()]
        axes.legend(handles=curves, frameon=False, fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    # The curves are drawn at every validation, and matplotlib's automatic layout takes half of the time.
    figure.subplots_adjust(0.75 / width, 1.0 / height, 1 - 0.8 / width, 1 - 0.8 / height, wspace=0.24, hspace=0.5)
    return figure


def _entries_with(entries: Iterable[LogEntry], key: str) -> list[LogEntry]:
    """The entries in which ``key`` has a value."""
    return [entry for entry in entries if entry.get(key) is not None]


def _series(entries: Iterable[LogEntry], key: str) -> tuple[np.ndarray, np.ndarray]:
    """(N,) positions and (N,) values of the entries in which ``key`` has a value."""
    pairs = [(entry["x"], entry[key]) for entry in _entries_with(entries, key)]
    positions, values = np.array(pairs, np.float64).reshape(-1, 2).T
    return positions, values


def _title(log: RunLog, run_name: str) -> str:
    facts = [f"epoch {entry['epoch']}" for entry in log["epoch"][-1:]]
    last_step = max(entry["step"] for entry in log["train"] + log["epoch"])
    facts.append(f"step {last_step}")
    if scored := _entries_with(log["epoch"], "AP"):
        best = max(scored, key=lambda entry: float(entry["AP"]))
        facts.append(f"best AP {best['AP']:.3f} after epoch {best['epoch']}")
    return f"{run_name}: {', '.join(facts)}"


def _plot_loss(axes: Axes, log: RunLog) -> None:
    axes.set_title("Loss", fontsize=11, loc="left")
    # The terms are means since the previous entry. Entries without them have only the mean loss of their epoch so far.
    summed = [
        entry | {"loss": np.asarray(entry["terms"], np.float64).sum() if entry.get("terms") else entry.get("loss")}
        for entry in log["train"]
    ]
    _plot_curve(axes, _series(summed, "loss"), "training, between log lines", COLOURS[5], 1)
    _plot_curve(axes, _series(log["epoch"], "train_loss"), "training, mean of the epoch", COLOURS[0], 2)
    _plot_curve(axes, _series(log["epoch"], "val_loss"), "validation", COLOURS[1], 2)
    _scale(axes)
    if log["skip"]:
        positions = [entry["x"] for entry in log["skip"]]
        heights = np.full(len(positions), 0.02)  # shares of the height of the axes
        axes.plot(positions, heights, "kx", label="skipped steps", transform=axes.get_xaxis_transform())


def _plot_scores(axes: Axes, log: RunLog) -> None:
    axes.set_title("COCO scores on the validation images", fontsize=11, loc="left")
    for name, colour in zip(SCORES, COLOURS):
        _plot_curve(axes, _series(log["epoch"], name), name, colour, 2.5 if name == "AP" else 1.2)
    axes.set_ylim(0, 1)


def _plot_learning_rate(axes: Axes, log: RunLog) -> None:
    axes.set_title("Learning rate and gradient norm", fontsize=11, loc="left")
    _plot_curve(axes, _series(log["train"], "lr"), "learning rate", COLOURS[0])
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.set_ylim(bottom=0)
    right = axes.twinx()
    _plot_curve(right, _series(log["train"], "gradient_norm"), "gradient norm (right)", COLOURS[1], 1)
    _scale(right)


def _plot_speed(axes: Axes, log: RunLog) -> None:
    axes.set_title("Speed", fontsize=11, loc="left")
    _plot_curve(axes, _series(log["train"], "samples_per_s"), "samples/s", COLOURS[0])
    axes.set_ylim(bottom=0)
    right = axes.twinx()
    for key, label, colour in (("data_wait", "wait for data", COLOURS[4]), ("memory_share", "memory", COLOURS[2])):
        positions, shares = _series(log["train"], key)
        _plot_curve(right, (positions, 100 * shares), f"{label} (right, %)", colour)
    right.set_ylim(0, 100)


def _plot_curve(
    axes: Axes, series: tuple[np.ndarray, np.ndarray], label: str, colour: str, linewidth: float | None = None
) -> None:
    """Plot positions and values with at most ``MAX_POINTS`` points; nothing without any."""
    positions, values = series
    if not len(values):
        return
    if len(values) > MAX_POINTS:
        groups = np.array_split(np.arange(len(values)), MAX_POINTS)
        positions = np.array([positions[group].mean() for group in groups])
        values = np.array([values[group].mean() for group in groups])
    marker = "." if len(values) <= MAX_POINTS_WITH_MARKERS else None
    axes.plot(positions, values, label=label, color=colour, linewidth=linewidth, marker=marker)


def _scale(axes: Axes) -> None:
    """Make the y axis logarithmic if all values are positive and the largest is more than 5 times the smallest."""
    from matplotlib.ticker import LogFormatter

    values = np.concatenate([np.zeros(0), *(line.get_ydata() for line in axes.get_lines())])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 5 * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter())
