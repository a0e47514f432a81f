"""What a user means by annotations, without reading them; test_from_annotations.py has what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import posenet
from posenet.training.find_annotations import are_annotations


def test_an_experiment_is_told_from_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("tiny", "coco"):
        Path(folder).mkdir()
    assert all(map(are_annotations, ["data.yaml", "a/train.json", Path("X.YML"), "a.zip", "coco", Path("coco")]))
    assert not any(map(are_annotations, ["tiny", "mine.toml", "missing", None, 3, posenet.load_config("tiny")]))
