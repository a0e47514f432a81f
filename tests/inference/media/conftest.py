"""Fixtures for tests of videos."""

from __future__ import annotations

import importlib.util

import pytest

from posenet.inference.media import video_library


@pytest.fixture(params=["PyAV", "OpenCV"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs with each library that reads and writes videos."""
    name: str = request.param
    if name == "PyAV" and importlib.util.find_spec("av") is None:
        pytest.skip("needs PyAV")
    monkeypatch.setattr(video_library, "has_pyav", lambda: name == "PyAV")
    return name
