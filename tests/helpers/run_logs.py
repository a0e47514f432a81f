"""The ``log.jsonl`` of a run: reading it, and making up its entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_log(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The entries of the log in a run's folder; with ``kind`` only those of this kind."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if kind in (None, entry["kind"])]


def train_entry(step: int, epoch: int = 0, loss: float | None = 2.0, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "time": 0.0,
        "epoch": epoch,
        "loss": loss,
        "lr": 1e-3,
        "samples_per_s": 9.0,
        "data_wait": 0.1,
        "terms": [[0.1] * 5, [0.2] * 5],
        "gradient_norm": 5.0,
    } | changes


def epoch_entry(step: int, epoch: int, **changes: Any) -> dict[str, Any]:
    return {"kind": "epoch", "step": step, "epoch": epoch, "train_loss": 3.0, "val_loss": 2.5} | changes
