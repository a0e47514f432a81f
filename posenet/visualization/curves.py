"""Curves as image files, by matplotlib if it is installed: those of a training run, and those of an evaluation."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.files import read_input, write_atomically
from posenet.settings import MAP_STRIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_FILE = "log.jsonl"
CURVES_FILE = "curves.png"
OWN_CURVES = re.compile(rb"\x89PNG.*Software\0Matplotlib", re.DOTALL)
"""How curves of a run begin. Matplotlib writes its name into its files."""
PRECISION_RECALL_FILE = "precision_recall.png"
KEYPOINTS_FILE = "keypoints.png"
MATPLOTLIB_MISSING = "matplotlib is not installed; pip install 'simplepose[plot]'"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Palette of Okabe and Ito, which colour-blind people can distinguish."""
GREY = "#6b6b6b"
MAX_POINTS = 400
"""Points per curve; longer series are averaged in groups."""
MAX_POINTS_WITH_MARKERS = 30
"""Curves with at most this many points have a dot at each of them."""
LEGEND_SPACE = 1.25
"""Height of axes with a legend above the curves, as a multiple of the height of the curves."""
SCORES = ("AP", "AP50", "AP75", "AR")
NUMBERS = (
    "step",
    "epoch",
    "loss",
    "lr",
    "samples_per_s",
    "data_wait",
    "memory_share",
    "train_loss",
    "val_loss",
    *SCORES,
)
"""What may be a number in an entry of the log; the axes need finite ones."""
MAX_NUMBER = 1e38
"""The largest number that is drawn, about that of float32. The limits of axes are sums and multiples of numbers."""
DRAWN_THRESHOLDS = (0, 2, 4, 5, 6, 8, 9)
"""Indices of those of COCO's ten OKS thresholds that have a curve: 0.50, 0.60, 0.70, 0.75, 0.80, 0.90 and 0.95."""

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
        positions: np.ndarray = np.interp(steps, epoch_steps, epochs) + pace * np.maximum(steps - epoch_steps[-1], 0)
        return positions

    def series(self, entries: Sequence[LogEntry], key: str) -> tuple[np.ndarray, np.ndarray]:
        """(N,) positions and (N, ...) values of the entries in which ``key`` has a value.

        Values have one shape. If the run was resumed with another number of stacks, its terms begin there.
        """
        entries = _entries_with(entries, key)
        entries = [entry for entry in entries if np.shape(entry[key]) == np.shape(entries[-1][key])]
        return self.positions(entries), np.array([entry[key] for entry in entries], np.float64)


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
            is_drawable = _is_drawable(entry)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue  # a line that is incomplete because the run was killed, or an entry that is not drawn
        if not is_drawable:
            continue
        while entries and entries[-1]["step"] >= entry["step"]:
            entries.pop()
        entries.append(entry)
    if not history.train and not history.epochs:
        raise DataError(f"{path} contains nothing to draw yet; wait for the run's first log line")
    return history


def _is_drawable(entry: LogEntry) -> bool:
    """Whether an entry has a step, an epoch has its number, and all values are numbers of the shapes that runs write.

    ``ValueError``, ``TypeError`` or ``OverflowError`` if its terms are no array of numbers.
    """
    required = ("step", "epoch") if entry["kind"] == "epoch" else ("step",)
    if any(entry.get(key) is None for key in required):
        return False
    numbers = [entry[key] for key in NUMBERS if entry.get(key) is not None]
    if not all(isinstance(number, (int, float)) and abs(number) <= MAX_NUMBER for number in numbers):
        return False
    if entry.get("terms") is None:
        return True
    terms = np.array(entry["terms"], np.float64)  # terms that are not finite are null there, and leave a gap
    return terms.ndim == 2 and terms.size > 0 and not bool((np.abs(terms) > MAX_NUMBER).any())


def write_curves(folder: Path, output: Path | None = None) -> Path:
    """Draw the curves of the run in ``folder`` to ``output``, or else to ``CURVES_FILE`` there; return the path.

    ``DataError`` if the folder contains no run, ``ConfigError`` if matplotlib is missing or the format is unknown.
    """
    path = folder / CURVES_FILE if output is None else output
    _save_figure(training_figure(read_log(folder / LOG_FILE), folder.resolve().name), path)
    return path


def training_figure(history: RunHistory, run_name: str) -> Figure:
    """Draw the loss, its share by scale and by stack, the scores, the learning rate, the gradient norm and the speed.

    What the log does not have has no panel: shares of a loss without terms or of a single stack, scores without an AP.
    """
    panels = [_plot_loss]
    _, terms = history.series(history.train, "terms")
    if len(terms):
        panels.append(_plot_scales)
    if len(terms) and terms.shape[1] > 1:
        panels.append(_plot_stacks)
    if _entries_with(history.epochs, "AP"):
        panels.append(_plot_scores)
    panels += [_plot_learning_rate, _plot_speed]
    columns = 2 if len(panels) <= 4 else 3
    rows = math.ceil(len(panels) / columns)
    width, height = 5.2 * columns, 4.2 * rows  # inches
    figure = _new_figure((width, height), _title(history, run_name))
    end = history.positions(history.train + history.epochs).max()
    for number, plot in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        plot(axes, history)
        axes.set_xlabel("epoch" if history.epochs else "step")
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
    _style_axes(axes, "Loss")
    logged = [entry for entry in history.train if entry.get("terms") or entry.get("loss") is not None]
    # The terms are means since the previous entry. Entries without them have only the mean loss of their epoch so far.
    losses = [np.asarray(entry["terms"], np.float64).sum() if entry.get("terms") else entry["loss"] for entry in logged]
    _plot_curve(axes, history.positions(logged), losses, "training, between log lines", COLOURS[5], linewidth=1)
    for key, label, colour in (
        ("train_loss", "training, mean of the epoch", COLOURS[0]),
        ("val_loss", "validation", COLOURS[1]),
    ):
        _plot_curve(axes, *history.series(history.epochs, key), label, colour, linewidth=2)
    _scale_axis(axes)
    if history.skips:
        positions = history.positions(history.skips)
        heights = [0.02] * len(positions)  # shares of the height of the axes
        axes.plot(positions, heights, "x", color=GREY, label="skipped steps", transform=axes.get_xaxis_transform())
    _add_legend(axes)


def _plot_scales(axes: Axes, history: RunHistory) -> None:
    _plot_terms(axes, history, "Training loss by scale", 1, lambda scale: f"stride {MAP_STRIDE << scale}")


def _plot_stacks(axes: Axes, history: RunHistory) -> None:
    _plot_terms(axes, history, "Training loss by stack", 2, lambda stack: f"stack {stack + 1}")


def _plot_terms(axes: Axes, history: RunHistory, title: str, summed_axis: int, label_of: Callable[[int], str]) -> None:
    """Plot the loss terms (N, stacks, scales), summed over one of these axes; ``label_of`` labels the curves."""
    _style_axes(axes, title)
    positions, terms = history.series(history.train, "terms")
    values = terms.sum(axis=summed_axis)  # (N, curves)
    for index, colour in enumerate(_sequential_colours(values.shape[1])):
        _plot_curve(axes, positions, values[:, index], label_of(index), colour)
    _scale_axis(axes)
    _add_legend(axes)


def _plot_scores(axes: Axes, history: RunHistory) -> None:
    _style_axes(axes, "COCO scores on the validation images")
    entries = _entries_with(history.epochs, "AP")
    for name, colour in zip(SCORES, COLOURS):
        values = [entry.get(name, np.nan) for entry in entries]
        _plot_curve(axes, history.positions(entries), values, name, colour, linewidth=2.5 if name == "AP" else 1.2)
    axes.set_ylim(0, 1)
    _add_legend(axes)


def _plot_learning_rate(axes: Axes, history: RunHistory) -> None:
    positions, norms = history.series(history.train, "gradient_norm")
    _style_axes(axes, "Learning rate and gradient norm" if len(norms) else "Learning rate")
    rate_positions, rates = history.series(history.train, "lr")
    _plot_curve(axes, rate_positions, rates, "learning rate" if len(norms) else "", COLOURS[0])
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.set_ylim(bottom=0)
    if not len(norms):
        return
    if len(rates) and rates.max() > 0:
        axes.set_ylim(0, LEGEND_SPACE * rates.max())
    norm_axes = _second_axes(axes)
    _plot_curve(norm_axes, positions, norms, "gradient norm (right)", COLOURS[1], linewidth=1)
    _scale_axis(norm_axes)
    _add_common_legend(axes, norm_axes)


def _plot_speed(axes: Axes, history: RunHistory) -> None:
    _style_axes(axes, "Speed")
    positions, speeds = history.series(history.train, "samples_per_s")
    _plot_curve(axes, positions, speeds, "samples/s", COLOURS[0])
    axes.set_ylim(0, LEGEND_SPACE * speeds.max() if len(speeds) else 1)
    positions, waits = history.series(history.train, "data_wait")
    memory_positions, memory = history.series(history.train, "memory_share")
    ylabel = "time waiting, memory in use, %" if len(memory) else "time spent waiting for data, %"
    share_axes = _second_axes(axes, ylabel)
    _plot_curve(share_axes, positions, 100 * waits, "wait for data", COLOURS[4])
    if len(memory):
        _plot_curve(share_axes, memory_positions, 100 * memory, "memory", COLOURS[2])
    share_axes.set_ylim(0, 100 * LEGEND_SPACE)
    share_axes.set_yticks(range(0, 101, 25))
    _add_common_legend(axes, share_axes)


def _second_axes(axes: Axes, ylabel: str = "") -> Axes:
    """Axes with the same x axis and with a y axis at the right."""
    second = axes.twinx()
    second.spines[["top"]].set_visible(False)
    second.set_ylabel(ylabel)
    return second


def _add_common_legend(*axes: Axes) -> None:
    """A legend of the curves of all axes, above them; on its own, each would show only those of one."""
    curves = [curve for each in axes for curve in each.get_lines()]
    axes[0].legend(handles=curves, frameon=False, fontsize=9, ncols=2, loc="upper center")


def _entries_with(entries: Iterable[LogEntry], key: str) -> list[LogEntry]:
    """The entries in which ``key`` has a value."""
    return [entry for entry in entries if entry.get(key) is not None]


def _plot_curve(
    axes: Axes, positions: np.ndarray, values: Any, label: str, colour: Any, linewidth: float | None = None
) -> None:
    """Plot a curve of at most ``MAX_POINTS`` points; a curve without points gets no label."""
    y = np.asarray(values, np.float64)
    if len(y) > MAX_POINTS:
        groups = np.array_split(np.arange(len(y)), MAX_POINTS)
        positions = np.array([positions[group].mean() for group in groups])
        y = np.array([y[group].mean() for group in groups])
    marker = "." if len(y) <= MAX_POINTS_WITH_MARKERS else None
    axes.plot(positions, y, label=label if len(y) else None, color=colour, linewidth=linewidth, marker=marker)


def _scale_axis(axes: Axes) -> None:
    """Leave space above the curves for the legend.

    The y axis is logarithmic if all values are positive and the largest is more than 5 times the smallest.
    """
    from matplotlib.ticker import LogFormatter

    values = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in axes.get_lines()])
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = values.min(), values.max()
    if low <= 0 or high <= 5 * low:
        axes.set_ylim(top=high + 0.25 * (high - low or 1))
        return
    axes.set_yscale("log")
    axes.set_ylim(top=3 * high)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())


def _add_legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, ncols=2)


def _new_figure(size: tuple[float, float], title: str = "", layout: Literal["constrained"] | None = None) -> Figure:
    """A figure of (width, height) ``size`` in inches, without a window; ``ConfigError`` if matplotlib does not work."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        reason = error if has_matplotlib() else MATPLOTLIB_MISSING
        raise ConfigError(f"cannot draw charts: {reason}") from error
    figure = Figure(figsize=size, dpi=110, layout=layout, facecolor="white")
    figure.suptitle(title, fontsize=13, fontweight="bold", parse_math=False)
    return figure


def _style_axes(axes: Axes, title: str, xlabel: str = "", ylabel: str = "") -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _sequential_colours(count: int) -> list[tuple[float, float, float, float]]:
    """Colours in order, from dark to light."""
    from matplotlib import colormaps

    # The last 15 % of the colour map are too light for lines on white.
    return [colormaps["viridis"](0.85 * i / max(count - 1, 1)) for i in range(count)]


def _save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, completely or not at all; ``ConfigError`` if matplotlib does not know the format."""
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format=path.suffix.lstrip(".").lower() or "none")
    except ValueError as error:
        raise ConfigError(f"cannot write {path}; choose .png, .svg or .pdf") from error
    write_atomically(path, buffer.getvalue())
