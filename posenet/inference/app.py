"""A page that finds people in photographs and videos, served by this machine (the extra ``app``)."""

import contextlib
import copy
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError, PosenetError
from posenet.inference.media.frames import file_source, read_frames
from posenet.inference.outputs import image_numbers, record_of, write_drawing, write_json
from posenet.inference.predict import AnyPredictor, PredictionSummary, load_predictor
from posenet.inference.predictor import Predictor
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, MIN_SCORE

LOCAL_HOST = "127.0.0.1"
"""The address that only programs on this machine reach."""

_log = logging.getLogger(__name__)


def app(
    predictor: AnyPredictor = "simplepose",
    *,
    host: str = LOCAL_HOST,
    port: int | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Serve a page that finds people in photographs and videos, until Ctrl-C.

    The page loads nothing from other machines. What is sent to it stays in a temporary folder until the end.

    Args:
        predictor: what finds people, as for ``posenet.predict``.
        host: address to listen at; "0.0.0.0" lets everybody who reaches this machine use the page.
        port: port to listen at; None is the first free one from 7860 on.
        stop_requested: checked all the time; true ends the page, and the prediction of a video.

    Raises:
        ConfigError: Gradio is not installed, or the address or the port cannot be used.
        CheckpointError: the weights cannot be loaded.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("the page needs the package Gradio: pip install 'simplepose[app]'") from error
    try:
        socket.create_server((host, port or 0)).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}, port {port or 'any'}: {error}; choose another") from error
    loaded = load_predictor(predictor)
    # Gradio asks its server whether it is ready: without a log message, and not by way of a proxy.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    direct = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    os.environ["no_proxy"] = ",".join([direct, host, "localhost"])
    with tempfile.TemporaryDirectory(prefix="posenet-app-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        page = _make_page(loaded, folder, stop_requested)
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            run_history=False,
            footer_links=[],
        )
        try:
            _log.info("the page is at %s; Ctrl-C ends it", address)
            while not stop_requested():
                time.sleep(0.1)
        finally:
            page.close(verbose=False)


def _make_page(predictor: Predictor, folder: str, stop_requested: Callable[[], bool]) -> Any:
    """The page, which writes its files into ``folder``."""
    import gradio as gr

    people = predictor.skeleton.people

    def find(path: str | None, min_score: float, keypoint_score: float) -> Iterator[tuple[Any, Any, Any]]:
        """What has been found so far; at the end the drawing and the JSON file too. "Stop" ends it after a frame."""
        if path is None:
            raise gr.Error("choose a photograph or a video", print_exception=False)
        source = file_source(Path(path))
        named = replace(source, location=Path(Path(path).name))  # without the folder in which Gradio keeps it
        written = Path(tempfile.mkdtemp(dir=folder))
        drawing = written / (named.stem + (".jpg" if named.kind == "image" else ".mp4"))
        file = written / f"{named.stem}.json"
        summary = PredictionSummary([named], predictor.skeleton)
        finder = copy.copy(predictor)
        finder.min_score = min_score
        frames = (replace(frame, source=named) for frame in read_frames(source))
        try:
            with (
                contextlib.closing(finder.find_people(frames, track=source.kind != "image")) as results,
                write_drawing(drawing) as draw,
                write_json(file) as write,
            ):
                for result in results:
                    summary.add(result)
                    if result.error is None:
                        draw(result.frame, result.plot(keypoint_min_score=keypoint_score, numbers=True))
                        write(record_of(result, image_numbers([named])))
                    yield f"{summary} ...", None, None
                    if stop_requested():
                        return
                if not summary.has_frames:
                    raise summary.unreadable[named]
        except PosenetError as error:
            raise gr.Error(str(error).replace(path, named.name), print_exception=False) from error
        problems = [str(problem).replace(path, named.name) for problem in summary.unreadable.values()]
        yield "; ".join([str(summary), *problems]), [drawing], str(file)

    return gr.Interface(
        find,
        inputs=[
            gr.File(label="Photograph or video"),
            gr.Slider(0, 1, MIN_SCORE, step=0.01, label=f"Minimum score of {people}"),
            gr.Slider(0, 1, KEYPOINT_MIN_SCORE, step=0.01, label="Minimum score of keypoints drawn"),
        ],
        outputs=[
            gr.Textbox(label="Found"),
            gr.Gallery(label="Drawing", preview=True, selected_index=0, buttons=["download", "fullscreen"]),
            gr.File(label="Keypoints (JSON)"),
        ],
        title="posenet",
        description=f"Finds {people} and their keypoints in photographs and videos, on this machine.",
        submit_btn=f"Find {people}",
        clear_btn=None,  # it would set the scores to 0
        flagging_mode="never",
        api_name="find",
    )
