"""The flags and the end of ``posenet app``; its page is asked in tests/inference/test_app.py."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import main
from posenet.inference.predictor import Predictor


def test_without_gradio_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app", "--checkpoint", "missing.pth"]) == 2
    expected = "posenet app: error: the page needs the package Gradio: pip install 'simplepose[app]'\n"
    assert capsys.readouterr().err == expected


def test_flags_say_where_the_page_is_and_its_end_is_an_interrupt(
    spot_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[tuple[object, ...]] = []

    def serve(
        load: Callable[[int | None], Predictor], *, stop_requested: Callable[[], bool], **options: object
    ) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        served.append((load(None).settings.height, *options.values(), stop_requested()))

    monkeypatch.setattr("posenet.cli.app.app", serve)
    words = ["app", "--checkpoint", str(spot_file), "--height", "128"]
    for more in ([], ["--host", "0.0.0.0", "--port", "7000"]):
        assert main([*words, *more]) == 130
        assert capsys.readouterr().err.endswith("posenet app: interrupted\n")
    assert served == [(128, "127.0.0.1", None, True), (128, "0.0.0.0", 7000, True)]
