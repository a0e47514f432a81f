"""The curves of a training run, from its log alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posenet.errors import DataError
from posenet.visualization.matplotlib_figure import COLOURS, GREY, dress, new_figure, save, say, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG, PICTURE = "log.jsonl", "curves.png"
"""Names in a run's folder."""
POINTS = 400
"""Most points that a curve is drawn with; more are averaged in groups."""
SCORES = ("AP", "AP50", "AP75", "AR")


@dataclass
class History:
    """What ``log.jsonl`` tells of a run: its lines of each kind, in the order of their steps.

    Attributes:
        train: every few steps: epoch, loss, lr, samples_per_s, data_wait, and where present terms, the mean
            loss by stack and scale since the line before.
        epochs: after each epoch: epoch, train_loss, val_loss and scores.
        skips: steps that were skipped for their loss.
    """

    train: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    skips: list[dict[str, Any]] = field(default_factory=list)

    def at(self, lines: Sequence[dict[str, Any]]) -> np.ndarray:
        """(L,) where lines stand, in epochs; in steps as long as no epoch has ended."""
        steps = np.array([line["step"] for line in lines], float)
        if not self.epochs:
            return steps
        known = np.array([(0, 0)] + [(line["step"], line["epoch"]) for line in self.epochs], float)
        (before, last), place = known[-2:], np.interp(steps, *known.T)
        pace = (last[1] - before[1]) / max(last[0] - before[0], 1)
        return place + np.maximum(steps - last[0], 0) * pace


def read_log(path: Path) -> History:
    """Read a run's ``log.jsonl``; what a run did again after it had gone back to a checkpoint counts once.

    Raises:
        DataError: no such file, or one without a line of a run.
    """
    history = History()
    kinds = {"train": history.train, "epoch": history.epochs, "skip": history.skips}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; name the folder of a run") from error
    for line in text.splitlines():
        try:
            record = json.loads(line)
            lines, step = kinds[record["kind"]], record["step"]
        except (ValueError, KeyError, TypeError):
            continue  # a line that a kill cut short, or of a kind that is not drawn
        while lines and lines[-1]["step"] >= step:
            lines.pop()
        lines.append(record)
    if not history.train and not history.epochs:
        raise DataError(f"{path} holds nothing to draw yet; wait for the run's first log line")
    return history


def draw_curves(folder: Path, output: Path | None = None) -> Path:
    """Draw the curves of the run in ``folder`` into ``output``, by default ``curves.png`` there; return that.

    Raises:
        DataError: no run.
        ConfigError: matplotlib is missing, or the format is unknown.
    """
    output = output or folder / PICTURE
    save(training_figure(read_log(folder / LOG), folder.resolve().name), output)
    return output


def training_figure(history: History, name: str) -> Figure:
    """Loss, its share by scale and by stack, scores, learning rate and speed."""
    figure, panels = new_figure(2, 3, (15, 8), _title(history, name))
    # This is drawn at every validation, and matplotlib's own search for a layout takes half of the time.
    figure.set_layout_engine(None)
    figure.subplots_adjust(left=0.045, right=0.955, bottom=0.065, top=0.91, wspace=0.17, hspace=0.3)
    _draw_loss(panels[0], history)
    _draw_terms(
        panels[1],
        history,
        axis=0,
        title="Training loss by scale",
        names=lambda n: [f"stride {4 << i}" for i in range(n)],
    )
    _draw_terms(
        panels[2], history, axis=1, title="Training loss by stack", names=lambda n: [f"stack {i + 1}" for i in range(n)]
    )
    _draw_scores(panels[3], history)
    _draw_rate(panels[4], history)
    _draw_speed(panels[5], history)
    end = max(history.at(history.train + history.epochs))
    for panel in panels:
        panel.set_xlim(0, max(1.02 * end, 1))
    return figure


def _title(history: History, name: str) -> str:
    done = [f"step {max(line['step'] for line in history.train + history.epochs)}"]
    if history.epochs:
        done.insert(0, f"epoch {history.epochs[-1]['epoch']}")
    scored = [line for line in history.epochs if line.get("AP") is not None]
    if scored:
        best = max(scored, key=lambda line: line["AP"])
        done.append(f"best AP {best['AP']:.3f} after epoch {best['epoch']}")
    return f"{name}: " + ", ".join(done)


def _draw_loss(panel: Axes, history: History) -> None:
    dress(panel, "Loss", _unit(history))
    lines = [line for line in history.train if line.get("terms") or line.get("loss") is not None]
    values = [np.sum(line["terms"]) if line.get("terms") else line["loss"] for line in lines]
    _line(panel, history.at(lines), values, "training, between log lines", COLOURS[5], linewidth=1)
    for key, label, colour in (
        ("train_loss", "training, mean of the epoch", COLOURS[0]),
        ("val_loss", "validation", COLOURS[1]),
    ):
        lines = [line for line in history.epochs if line.get(key) is not None]
        _line(panel, history.at(lines), [line[key] for line in lines], label, colour, linewidth=2)
    if history.skips:
        panel.plot(
            history.at(history.skips),
            [0.02] * len(history.skips),
            "x",
            color=GREY,
            label="skipped steps",
            transform=panel.get_xaxis_transform(),
        )
    _logarithmic(panel)
    _legend(panel)


def _draw_terms(panel: Axes, history: History, axis: int, title: str, names: Any) -> None:
    dress(panel, title, _unit(history))
    lines = [line for line in history.train if line.get("terms")]
    # A run that goes on with other stacks begins anew here.
    lines = [line for line in lines if np.shape(line["terms"]) == np.shape(lines[-1]["terms"])]
    if not lines:
        say(panel, "not in this log")
        return
    values = np.array([line["terms"] for line in lines]).sum(axis=1 + axis)
    for series, label, colour in zip(values.T, names(values.shape[1]), shades(values.shape[1])):
        _line(panel, history.at(lines), series, label, colour)
    _logarithmic(panel)
    _legend(panel)


def _draw_scores(panel: Axes, history: History) -> None:
    dress(panel, "COCO scores on the validation images", _unit(history))
    lines = [line for line in history.epochs if line.get("AP") is not None]
    if not lines:
        say(panel, "not evaluated\n(data.val_images, data.val_annotations)")
        return
    for i, name in enumerate(SCORES):
        _line(
            panel,
            history.at(lines),
            [line.get(name, np.nan) for line in lines],
            name,
            COLOURS[i],
            linewidth=2.5 if name == "AP" else 1.2,
        )
    panel.set_ylim(0, 1)
    _legend(panel)


def _draw_rate(panel: Axes, history: History) -> None:
    dress(panel, "Learning rate", _unit(history))
    lines = [line for line in history.train if line.get("lr") is not None]
    _line(panel, history.at(lines), [line["lr"] for line in lines], "", COLOURS[0])
    panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    panel.set_ylim(bottom=0)


def _draw_speed(panel: Axes, history: History) -> None:
    dress(panel, "Speed", _unit(history), "samples/s")
    lines = [line for line in history.train if line.get("samples_per_s") is not None]
    _line(panel, history.at(lines), [line["samples_per_s"] for line in lines], "samples/s", COLOURS[0])
    panel.set_ylim(bottom=0)
    waits = panel.twinx()
    waits.spines[["top"]].set_visible(False)
    _line(waits, history.at(lines), [100 * line.get("data_wait", 0) for line in lines], "wait for data", COLOURS[4])
    waits.set_ylabel("time spent waiting for data, %")
    waits.set_ylim(0, 100)
    handles = [*panel.get_lines(), *waits.get_lines()]
    panel.legend(handles, [line.get_label() for line in handles], frameon=False, fontsize=9)


def _line(panel: Axes, x: np.ndarray, y: Sequence[float], label: str, colour: Any, **style: Any) -> None:
    """A curve of at most ``POINTS`` points, with dots where it has few."""
    y = np.asarray(y, float)
    groups = np.array_split(np.arange(len(y)), min(len(y), POINTS)) if len(y) else []
    x, y = (np.array([values[group].mean() for group in groups]) for values in (x, y))
    few = len(y) <= 30
    panel.plot(x, y, label=label if len(y) else None, color=colour, marker="." if few else None, **style)


def _unit(history: History) -> str:
    return "epoch" if history.epochs else "step"


def _logarithmic(panel: Axes) -> None:
    from matplotlib.ticker import LogFormatter

    values = np.concatenate(
        [np.asarray(line.get_ydata(), float) for line in panel.get_lines() if line.get_label() != "skipped steps"]
        or [np.ones(1)]
    )
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == np.isfinite(values).sum() and len(positive) and positive.max() > 5 * positive.min():
        panel.set_yscale("log")
        panel.set_ylim(top=3 * positive.max())  # for the legend
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(LogFormatter())


def _legend(panel: Axes) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, fontsize=9, ncols=2)
