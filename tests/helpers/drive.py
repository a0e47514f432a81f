"""A stand-in for Google Drive: gdown writes what a test says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any
from unittest.mock import create_autospec

import gdown
import pytest

from posenet.checkpoints.published.weights import NAMED_WEIGHTS, NamedWeights


@dataclass
class Drive:
    """What is downloaded, which a test may change at any time, and how often."""

    data: bytes
    downloads: int = 0

    def download(self, *, output: IO[bytes], progress: Callable[[int, int], None], **_: Any) -> None:
        self.downloads += 1
        progress(len(self.data), len(self.data))
        output.write(self.data)
        output.flush()


def drive_with(data: bytes, name: str, monkeypatch: pytest.MonkeyPatch) -> Drive:
    """Make ``data`` the file of the published weights of a new name."""
    drive = Drive(data)
    monkeypatch.setattr("gdown.download", create_autospec(gdown.download, side_effect=drive.download))
    monkeypatch.setitem(NAMED_WEIGHTS, name, NamedWeights("a tiny network", license="CC0", drive_id="1aB2cD3eF4"))
    return drive
