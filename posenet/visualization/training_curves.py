"""Curves of a training run, drawn from its ``log.jsonl`` only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posenet.errors import DataError
from posenet.settings import MAP_STRIDE
from posenet.visualization.matplotlib_figure import (
    COLOURS,
    GREY,
    RGBA,
    new_figure,
    save_figure,
    sequential_colours,
    show_no_data,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_FILE = "log.jsonl"
CURVES_FILE = "curves.png"
"""The log and the drawing in a run's folder."""
MAX_POINTS = 400
"""Points per curve; longer series are averaged in groups."""
MAX_POINTS_WITH_MARKERS = 30
"""Curves with at most this many points have a dot at each of them."""
SCORES = ("AP", "AP50", "AP75", "AR")

LogEntry = dict[str, Any]
"""One line of ``log.jsonl``."""
Values = Sequence[float] | np.ndarray


@dataclass
class RunHistory:
    """The entries of a run's log by kind, each kind in the order of its steps."""

    train: list[LogEntry] = field(default_factory=list)
    """One entry every few steps: epoch, loss, lr, samples_per_s, data_wait and possibly terms, the mean loss since the
    previous entry, by stack and scale."""
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
        positions: np.ndarray = np.interp(steps, epoch_steps, epochs) + pace * np.maximum(steps - epoch_steps[-1], 0)
        return positions

    def unit(self) -> str:
        """Label of the x axis."""
        return "epoch" if self.epochs else "step"


def read_log(path: Path) -> RunHistory:
    """Read a run's ``log.jsonl``; ``DataError`` if it has no entries. Steps that a resumed run repeats count once."""
    history = RunHistory()
    kinds = {"train": history.train, "epoch": history.epochs, "skip": history.skips}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; give the folder of a run") from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            entries = kinds[entry["kind"]]
            step = entry["step"]
        except (ValueError, KeyError, TypeError):
            continue  # a line that is incomplete because the run was killed, or an entry that is not drawn
        while entries and entries[-1]["step"] >= step:
            entries.pop()
        entries.append(entry)
    if not history.train and not history.epochs:
        raise DataError(f"{path} contains nothing to draw yet; wait for the run's first log line")
    return history


def write_curves(folder: Path, output: Path | None = None) -> Path:
    """Draw the curves of the run in ``folder`` to ``output``, or else to ``CURVES_FILE`` there; return the path.

    Raises:
        DataError: the folder contains no run.
        ConfigError: matplotlib is missing, or the format is unknown.
    """
    path = folder / CURVES_FILE if output is None else output
    save_figure(training_figure(read_log(folder / LOG_FILE), folder.resolve().name), path)
    return path


def training_figure(history: RunHistory, run_name: str) -> Figure:
    """Draw the loss, its share by scale and by stack, the scores, the learning rate and the speed."""
    figure, axes = new_figure(2, 3, (15, 8), _title(history, run_name))
    # The curves are drawn at every validation, and matplotlib's automatic layout takes half of the time.
    figure.set_layout_engine(None)
    figure.subplots_adjust(left=0.045, right=0.955, bottom=0.065, top=0.91, wspace=0.17, hspace=0.3)
    _plot_loss(axes[0], history)
    _plot_loss_terms(axes[1], history, "Training loss by scale", 1, lambda scale: f"stride {MAP_STRIDE << scale}")
    _plot_loss_terms(axes[2], history, "Training loss by stack", 2, lambda stack: f"stack {stack + 1}")
    _plot_scores(axes[3], history)
    _plot_learning_rate(axes[4], history)
    _plot_speed(axes[5], history)
    end = history.positions(history.train + history.epochs).max()
    for panel in axes:
        panel.set_xlim(0, max(1.02 * end, 1))
    return figure


def _title(history: RunHistory, run_name: str) -> str:
    facts = []
    if history.epochs:
        facts.append(f"epoch {history.epochs[-1]['epoch']}")
    facts.append(f"step {max(entry['step'] for entry in history.train + history.epochs)}")
    if scored := _entries_with(history.epochs, "AP"):
        best = max(scored, key=lambda entry: float(entry["AP"]))
        facts.append(f"best AP {best['AP']:.3f} after epoch {best['epoch']}")
    return f"{run_name}: {', '.join(facts)}"


def _plot_loss(axes: Axes, history: RunHistory) -> None:
    style_axes(axes, "Loss", history.unit())
    logged = [entry for entry in history.train if entry.get("terms") or entry.get("loss") is not None]
    # The terms are means since the previous entry; the loss is that of one step.
    losses = [np.sum(entry["terms"]) if entry.get("terms") else entry["loss"] for entry in logged]
    _plot_curve(axes, history.positions(logged), losses, "training, between log lines", COLOURS[5], linewidth=1)
    epoch_curves = {"train_loss": "training, mean of the epoch", "val_loss": "validation"}
    for (key, label), colour in zip(epoch_curves.items(), COLOURS):
        entries = _entries_with(history.epochs, key)
        losses = [entry[key] for entry in entries]
        _plot_curve(axes, history.positions(entries), losses, label, colour, linewidth=2)
    _use_log_scale_if_wide(axes)
    if history.skips:
        positions = history.positions(history.skips)
        heights = [0.02] * len(positions)  # shares of the height of the axes
        axes.plot(positions, heights, "x", color=GREY, label="skipped steps", transform=axes.get_xaxis_transform())
    _add_legend(axes)


def _plot_loss_terms(
    axes: Axes, history: RunHistory, title: str, summed_axis: int, label_of: Callable[[int], str]
) -> None:
    """Plot the loss terms (N, stacks, scales), summed over one of these axes; ``label_of`` labels the curves."""
    style_axes(axes, title, history.unit())
    entries = [entry for entry in history.train if entry.get("terms")]
    if not entries:
        show_no_data(axes, "not in this log")
        return
    # If the run was resumed with another number of stacks, the curves start there.
    shape = np.shape(entries[-1]["terms"])
    entries = [entry for entry in entries if np.shape(entry["terms"]) == shape]
    values = np.array([entry["terms"] for entry in entries], np.float64).sum(axis=summed_axis)  # (N, curves)
    for index, colour in enumerate(sequential_colours(values.shape[1])):
        _plot_curve(axes, history.positions(entries), values[:, index], label_of(index), colour)
    _use_log_scale_if_wide(axes)
    _add_legend(axes)


def _plot_scores(axes: Axes, history: RunHistory) -> None:
    style_axes(axes, "COCO scores on the validation images", history.unit())
    entries = _entries_with(history.epochs, "AP")
    if not entries:
        show_no_data(axes, "not evaluated\n(data.val_images, data.val_annotations)")
        return
    for name, colour in zip(SCORES, COLOURS):
        values = [entry.get(name, np.nan) for entry in entries]
        _plot_curve(axes, history.positions(entries), values, name, colour, linewidth=2.5 if name == "AP" else 1.2)
    axes.set_ylim(0, 1)
    _add_legend(axes)


def _plot_learning_rate(axes: Axes, history: RunHistory) -> None:
    style_axes(axes, "Learning rate", history.unit())
    entries = _entries_with(history.train, "lr")
    _plot_curve(axes, history.positions(entries), [entry["lr"] for entry in entries], "", COLOURS[0])
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.set_ylim(bottom=0)


def _plot_speed(axes: Axes, history: RunHistory) -> None:
    style_axes(axes, "Speed", history.unit(), "samples/s")
    entries = _entries_with(history.train, "samples_per_s")
    positions = history.positions(entries)
    _plot_curve(axes, positions, [entry["samples_per_s"] for entry in entries], "samples/s", COLOURS[0])
    axes.set_ylim(bottom=0)
    wait_axes = axes.twinx()
    wait_axes.spines[["top"]].set_visible(False)
    wait_percentages = [100 * entry.get("data_wait", 0) for entry in entries]
    _plot_curve(wait_axes, positions, wait_percentages, "wait for data", COLOURS[4])
    wait_axes.set_ylabel("time spent waiting for data, %")
    wait_axes.set_ylim(0, 100)
    # A legend shows the curves of both axes only if they are passed to it.
    axes.legend(handles=[*axes.get_lines(), *wait_axes.get_lines()], frameon=False, fontsize=9)


def _entries_with(entries: Iterable[LogEntry], key: str) -> list[LogEntry]:
    """The entries in which ``key`` has a value."""
    return [entry for entry in entries if entry.get(key) is not None]


def _plot_curve(
    axes: Axes, positions: np.ndarray, values: Values, label: str, colour: str | RGBA, linewidth: float | None = None
) -> None:
    """Plot a curve of at most ``MAX_POINTS`` points; a curve without points gets no label."""
    y = np.asarray(values, np.float64)
    if len(y) > MAX_POINTS:
        groups = np.array_split(np.arange(len(y)), MAX_POINTS)
        positions = np.array([positions[group].mean() for group in groups])
        y = np.array([y[group].mean() for group in groups])
    marker = "." if len(y) <= MAX_POINTS_WITH_MARKERS else None
    axes.plot(positions, y, label=label if len(y) else None, color=colour, linewidth=linewidth, marker=marker)


def _use_log_scale_if_wide(axes: Axes) -> None:
    """Use a logarithmic y axis if all values are positive and the largest is more than 5 times the smallest."""
    from matplotlib.ticker import LogFormatter

    curves = [np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()]
    values = np.concatenate(curves) if curves else np.zeros(0)
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() <= 5 * values.min():
        return
    axes.set_yscale("log")
    axes.set_ylim(top=3 * values.max())  # leaves space for the legend
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())


def _add_legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, ncols=2)
