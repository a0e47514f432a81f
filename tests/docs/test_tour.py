"""The notebook runs: all its code cells, with a smaller data set and a shorter training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.source_files import ROOT

SHORTER = {
    "IMAGES = 400": "IMAGES = 6",
    "EPOCHS = 6": "EPOCHS = 1",
    "model.width=32": "model.width=16",
    "train.input_size=192": "train.input_size=64",
    "inference.height=256": "inference.height=64",
}
"""Text of the notebook, and what replaces it."""


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(cells)
    for text, replacement in SHORTER.items():
        assert code.count(text) == 1, text
        code = code.replace(text, replacement)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "tour.ipynb", "exec"), names)
    assert names["run"].finished
    assert "AP" in names["evaluation"].metrics
    assert names["person"].id == 1
