"""The ``log.jsonl`` of a run."""

import json
from pathlib import Path
from typing import Any


def read_log(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The entries of the log in a run's folder; with ``kind`` only those of this kind."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if kind in (None, entry["kind"])]
