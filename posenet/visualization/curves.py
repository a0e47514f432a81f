"""The curves of a training run as an image file, drawn by matplotlib if it is installed."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.files import read_input, write_atomically
from posenet.messages import truncate_for_message

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_FILE = "log.jsonl"
CURVES_FILE = "curves.png"
OWN_CURVES = re.compile(rb"\x89PNG.*Software\0Matplotlib", re.DOTALL)
"""How curves of a run begin. Matplotlib writes its name into its files."""
MATPLOTLIB_MISSING = "matplotlib is not installed; pip install 'simplepose[plot]'"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Palette of Okabe and Ito, which colour-blind people can distinguish."""
MAX_POINTS = 400
"""Points per curve; longer series are averaged in groups."""
MAX_POINTS_WITH_MARKERS = 30
"""Curves with at most this many points have a dot at each of them."""
LEGEND_SPACE = 0.25
"""Height of the space above the curves for their legend, as a share of the height of the axes without it."""
SCORES = ("AP", "AP50", "AP75", "AR")

LogEntry = dict[str, Any]
"""One line of ``log.jsonl``."""


def has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


@dataclass
class RunHistory:
    """The entries of a run's log by kind, each kind in the order of its steps."""

    train: list[LogEntry] = field(default_factory=list)
    """One entry every few steps: epoch, loss, lr, samples_per_s, data_wait and possibly the means since the previous
    entry of terms, the loss by stack and scale, and of gradient_norm. Those of accelerators have memory_share."""
    epochs: list[LogEntry] = field(default_factory=list)
    """One entry per epoch: epoch, train_loss, val_loss and scores."""
    skips: list[LogEntry] = field(default_factory=list)
    """Steps that were skipped because of their loss."""

    def positions(self, entries: Sequence[LogEntry]) -> np.ndarray:
        """(N,) float64: positions of entries on the x axis, in epochs, or in steps until the first epoch has ended."""
        steps = np.array([entry["step"] for entry in entries], np.float64)
        if not self.epochs:
            return steps
        epoch_steps = np.array([0, *(entry["step"] for entry in self.epochs)], np.float64)
        epochs = np.array([0, *(entry["epoch"] for entry in self.epochs)], np.float64)
        # Entries after the last epoch continue at its pace.
        pace = (epochs[-1] - epochs[-2]) / max(epoch_steps[-1] - epoch_steps[-2], 1)
        return np.asarray(np.interp(steps, epoch_steps, epochs) + pace * np.maximum(steps - epoch_steps[-1], 0))

    def series(self, entries: Sequence[LogEntry], key: str) -> tuple[np.ndarray, np.ndarray]:
        """(N,) positions and (N,) values of the entries in which ``key`` has a value."""
        entries = _entries_with(entries, key)
        return self.positions(entries), np.array([entry[key] for entry in entries], np.float64)


def _entries_with(entries: Iterable[LogEntry], key: str) -> list[LogEntry]:
    """The entries in which ``key`` has a value."""
    return [entry for entry in entries if entry.get(key) is not None]


def read_log(path: Path) -> RunHistory:
    """Read a run's ``log.jsonl``; ``DataError`` if it has no entries. Steps that a resumed run repeats count once.

    Lines that a run cannot have written completely are left out.
    """
    history = RunHistory()
    kinds = {"train": history.train, "epoch": history.epochs, "skip": history.skips}
    try:
        text = read_input(path).decode(errors="replace")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; give the folder of a run") from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            entries = kinds[entry["kind"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a line that is incomplete because the run was killed, or an entry that is not drawn
        while entries and entries[-1]["step"] >= entry["step"]:
            entries.pop()
        entries.append(entry)
    if not history.train and not history.epochs:
        raise DataError(f"{path} contains nothing to draw yet; wait for the run's first log line")
    return history


def write_curves(folder: Path, output: Path | None = None) -> Path:
    """Draw the curves of the run in ``folder`` to ``output``, or else to ``CURVES_FILE`` there; return the path.

    ``DataError`` if the folder contains no run, or a log that no run has written; ``ConfigError`` if matplotlib is
    missing or the format is unknown.
    """
    path = folder / CURVES_FILE if output is None else output
    try:
        figure = training_figure(read_log(folder / LOG_FILE), folder.resolve().name)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        reason = truncate_for_message(error)
        raise DataError(
            f"{folder / LOG_FILE} has values that no run writes ({reason}); give the log of a run"
        ) from error
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format=path.suffix.lstrip(".").lower() or "none")
    except ValueError as error:
        raise ConfigError(f"cannot write {path}; choose .png, .svg or .pdf") from error
    write_atomically(path, buffer.getvalue())
    return path


def training_figure(history: RunHistory, run_name: str) -> Figure:
    """Draw the loss, the scores if there are any, the learning rate, the gradient norm and the speed.

    ``ConfigError`` if matplotlib does not work.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"cannot draw curves: {error if has_matplotlib() else MATPLOTLIB_MISSING}") from error
    panels: list[Callable[[Axes, RunHistory], None]] = [_plot_loss]
    if _entries_with(history.epochs, "AP"):
        panels.append(_plot_scores)
    panels += [_plot_learning_rate, _plot_speed]
    columns = 2
    rows = math.ceil(len(panels) / columns)
    width, height = 5.2 * columns, 4.2 * rows  # inches
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    figure.suptitle(_title(history, run_name), fontsize=13, fontweight="bold", parse_math=False)
    end = history.positions(history.train + history.epochs).max()
    for number, plot in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("epoch" if history.epochs else "step")
        plot(axes, history)
        axes.set_xlim(0, max(1.02 * end, 1))
    # The curves are drawn at every validation, and matplotlib's automatic layout takes half of the time.
    figure.subplots_adjust(0.75 / width, 0.6 / height, 1 - 0.8 / width, 1 - 0.8 / height, wspace=0.24, hspace=0.36)
    return figure


def _title(history: RunHistory, run_name: str) -> str:
    facts = [f"epoch {entry['epoch']}" for entry in history.epochs[-1:]]
    facts.append(f"step {max(entry['step'] for entry in history.train + history.epochs)}")
    if scored := _entries_with(history.epochs, "AP"):
        best = max(scored, key=lambda entry: float(entry["AP"]))
        facts.append(f"best AP {best['AP']:.3f} after epoch {best['epoch']}")
    return f"{run_name}: {', '.join(facts)}"


def _plot_loss(axes: Axes, history: RunHistory) -> None:
    axes.set_title("Loss", fontsize=11, loc="left")
    logged = [entry for entry in history.train if entry.get("terms") or entry.get("loss") is not None]
    # The terms are means since the previous entry. Entries without them have only the mean loss of their epoch so far.
    losses = [np.asarray(entry["terms"], np.float64).sum() if entry.get("terms") else entry["loss"] for entry in logged]
    _plot_curve(axes, (history.positions(logged), losses), "training, between log lines", COLOURS[5], 1)
    _plot_curve(axes, history.series(history.epochs, "train_loss"), "training, mean of the epoch", COLOURS[0], 2)
    _plot_curve(axes, history.series(history.epochs, "val_loss"), "validation", COLOURS[1], 2)
    _scale(axes)
    _leave_out_first_epoch(axes, history)
    if history.skips:
        positions = history.positions(history.skips)
        heights = np.full(len(positions), 0.02)  # shares of the height of the axes
        axes.plot(positions, heights, "kx", label="skipped steps", transform=axes.get_xaxis_transform())
    _add_legend(axes)


def _plot_scores(axes: Axes, history: RunHistory) -> None:
    axes.set_title("COCO scores on the validation images", fontsize=11, loc="left")
    for name, colour in zip(SCORES, COLOURS):
        _plot_curve(axes, history.series(history.epochs, name), name, colour, 2.5 if name == "AP" else 1.2)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=9, ncols=2)


def _plot_learning_rate(axes: Axes, history: RunHistory) -> None:
    norms = history.series(history.train, "gradient_norm")
    has_norms = len(norms[0]) > 0
    axes.set_title("Learning rate and gradient norm" if has_norms else "Learning rate", fontsize=11, loc="left")
    _plot_curve(axes, history.series(history.train, "lr"), "learning rate", COLOURS[0])
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.set_ylim(bottom=0)
    if has_norms:
        right = _right_axes(axes)
        _plot_curve(right, norms, "gradient norm (right)", COLOURS[1], 1)
        _scale(right)
        _add_legend(axes, right)


def _plot_speed(axes: Axes, history: RunHistory) -> None:
    axes.set_title("Speed", fontsize=11, loc="left")
    _plot_curve(axes, history.series(history.train, "samples_per_s"), "samples/s", COLOURS[0])
    axes.set_ylim(bottom=0)
    right = _right_axes(axes)
    for key, label, colour in (("data_wait", "wait for data", COLOURS[4]), ("memory_share", "memory", COLOURS[2])):
        positions, shares = history.series(history.train, key)
        _plot_curve(right, (positions, 100 * shares), f"{label} (right, %)", colour)
    right.set_ylim(0, 100)
    right.set_yticks(range(0, 101, 25))
    _add_legend(axes, right)


def _right_axes(axes: Axes) -> Axes:
    """Axes with the same x axis and with a y axis at the right."""
    right = axes.twinx()
    right.spines[["top"]].set_visible(False)
    return right


def _plot_curve(
    axes: Axes, series: tuple[np.ndarray, Any], label: str, colour: Any, linewidth: float | None = None
) -> None:
    """Plot positions and values with at most ``MAX_POINTS`` points; nothing without any."""
    positions, values = series
    values = np.asarray(values, np.float64)
    if not len(values):
        return
    if len(values) > MAX_POINTS:
        groups = np.array_split(np.arange(len(values)), MAX_POINTS)
        positions = np.array([positions[group].mean() for group in groups])
        values = np.array([values[group].mean() for group in groups])
    marker = "." if len(values) <= MAX_POINTS_WITH_MARKERS else None
    axes.plot(positions, values, label=label, color=colour, linewidth=linewidth, marker=marker)


def _finite_values(axes: Axes, start: float = -math.inf) -> np.ndarray:
    """The finite values of all curves after the position ``start``."""
    xy = np.concatenate([np.zeros((0, 2)), *(line.get_xydata() for line in axes.get_lines())])
    return np.asarray(xy[(xy[:, 0] > start) & np.isfinite(xy[:, 1]), 1])


def _scale(axes: Axes) -> None:
    """Make the y axis logarithmic if all values are positive and the largest is more than 5 times the smallest."""
    from matplotlib.ticker import LogFormatter

    values = _finite_values(axes)
    if len(values) and values.min() > 0 and values.max() > 5 * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(LogFormatter())


def _leave_out_first_epoch(axes: Axes, history: RunHistory) -> None:
    """From two epochs on, fit the y axis to what follows the first one: its losses are so high that they hide the rest.

    The curves leave the panel there.
    """
    if len(history.epochs) < 2:
        return
    values = _finite_values(axes, start=history.positions(history.epochs)[0])
    if len(values) and (low := values.min()) < (high := values.max()):
        margin = 0.05 * (high - low)
        axes.set_ylim(max(low - margin, 0.9 * low), high + margin)


def _add_legend(*axes: Axes) -> None:
    """A legend of the curves of all axes, which lie on each other, and space for it above the curves."""
    for each in axes:
        low, high = each.get_ylim()
        if each.get_yscale() == "log":
            each.set_ylim(low, high * (high / low) ** LEGEND_SPACE)
        else:
            each.set_ylim(low, high + LEGEND_SPACE * (high - low))
    curves = [curve for each in axes for curve in each.get_lines()]
    axes[0].legend(handles=curves, frameon=False, fontsize=9, ncols=2, loc="upper center")
