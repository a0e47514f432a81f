"""The curves of a training run as an image file, drawn by matplotlib if it is installed."""

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenet.errors import DataError
from posenet.files import read_input, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_FILE = "log.jsonl"
CURVES_FILE = "curves.png"
PANELS = {
    "Loss": [
        ("train", "loss", "training, mean of the epoch so far"),
        ("epoch", "train_loss", "training, mean of the epoch"),
        ("epoch", "val_loss", "validation"),
    ],
    "COCO scores on the validation images": [("epoch", name, name) for name in ("AP", "AP50", "AP75", "AR")],
    "Learning rate": [("train", "lr", "learning rate")],
    "Gradient norm": [("train", "gradient_norm", "gradient norm")],
}
"""The curves of each panel: the kind of log entries, the key in them, and the label."""

RunLog = dict[str, list[dict[str, Any]]]
"""The entries of ``log.jsonl`` in the order of their steps: ``train``, every few steps; ``epoch``; and ``skip``."""


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
            continue  # the run was killed while it wrote the line, or the entry is of another kind
        while entries and entries[-1]["step"] >= entry["step"]:
            entries.pop()
        entries.append(entry)
    return log


def write_curves(folder: Path) -> Path:
    """Draw the curves of the run in ``folder`` to ``CURVES_FILE`` there, and return its path.

    ``DataError`` if the log has nothing to draw yet.
    """
    figure = training_figure(read_log(folder / LOG_FILE), folder.resolve().name)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(folder / CURVES_FILE, buffer.getvalue())
    return folder / CURVES_FILE


def training_figure(log: RunLog, run_name: str) -> "Figure":
    """Draw the panels by step."""
    from matplotlib.figure import Figure

    if not log["train"] and not log["epoch"]:
        raise DataError(f"the log of {run_name} contains nothing to draw yet; wait for the run's first log line")
    figure = Figure(figsize=(10.4, 7.2), dpi=110, facecolor="white")
    # Drawn after every epoch: matplotlib's automatic layouts take longer than the curves.
    figure.subplots_adjust(0.07, 0.125, 0.97, 0.865, hspace=0.35)
    figure.suptitle(run_name, fontsize=13, fontweight="bold", parse_math=False)
    for axes, (title, curves) in zip(figure.subplots(2, 2).flat, PANELS.items()):
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        for kind, key, label in curves:
            points = [(entry["step"], entry[key]) for entry in log[kind] if entry.get(key) is not None]
            if points:
                axes.plot(*zip(*points), label=label, marker="." if len(points) < 30 else None)
                axes.legend(frameon=False, fontsize=9)
        if title in ("Loss", "Gradient norm"):
            axes.set_yscale("log", nonpositive="mask")
        if title == "Loss":
            for entry in log["skip"]:
                axes.axvline(entry["step"], color="black", linestyle=":", linewidth=1)
    return figure
