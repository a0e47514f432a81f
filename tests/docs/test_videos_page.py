"""The example of docs/videos.md that no test of examples runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.source_files import ROOT
from tests.helpers.videos import write_media


@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".ts"])
def test_the_page_says_how_much_later_the_images_begin_than_the_sound(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_media(tmp_path / f"x{suffix}", 3 + np.arange(20) / 10, sound=6)
    page = (ROOT / "docs" / "videos.md").read_text()
    exec(page.partition("python -c '")[2].partition("')")[0].replace("clip.mp4", str(path)), {})
    assert float(capsys.readouterr().out) == pytest.approx(3, abs=0.1)
