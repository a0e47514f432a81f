"""A page that finds people in photographs and videos, served by this machine (the extra ``app``)."""

from __future__ import annotations

import copy
import html
import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError, PosenetError
from posenet.files import open_text_output
from posenet.inference.media.frames import find_sources
from posenet.inference.predict import AnyPredictor, load_predictor, predict
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, MIN_SCORE

LOCAL_HOST = "127.0.0.1"
"""The address that only programs on this machine reach."""
MESSAGE_SECONDS = 30
_STYLE = """
.drawing img, .drawing video { width: auto !important; max-width: 100%; max-height: 80vh; margin: 0 auto; }
.drawing .image-frame, .drawing .image-container, .drawing button { height: auto !important; }
"""
"""Photographs have their own size, and fit the window."""

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
        finding = threading.Lock()
        page = _make_page(loaded, Path(folder), stop_requested, finding)
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            run_history=False,
            footer_links=[],
            css=_STYLE,
        )
        try:
            _log.info("the page is at %s; Ctrl-C ends it", address)
            while not stop_requested():
                time.sleep(0.1)
        finally:
            page.close(verbose=False)
            finding.acquire()  # the files of a video that has been stopped are closed


def _make_page(predictor: Predictor, folder: Path, stop_requested: Callable[[], bool], finding: threading.Lock) -> Any:
    """The page, with its files in Gradio's temporary ``folder``; the lock is held while people are found."""
    import gradio as gr

    people = predictor.skeleton.people
    stops: dict[str | None, threading.Event] = {}  # of the user whose file is looked at

    def find(
        path: str | None,
        min_score: float,
        keypoint_score: float,
        track: bool,
        request: Any,
        progress: Any = gr.Progress(),  # noqa: B008  # Gradio knows it by this default
    ) -> Any:
        """What the page shows: a drawing or a drawn video, how many people, a table of them, a file."""
        if path is None:
            return [gr.update(visible=False), gr.update(visible=False), "", *[gr.update(visible=False)] * 2]
        finder = copy.copy(predictor)
        finder.min_score = min_score
        written = Path(tempfile.mkdtemp(dir=folder))
        file = written / f"{Path(path).stem}.json"
        results: list[Result] = []
        stop = stops[request.session_hash] = threading.Event()

        def collect(result: Result) -> None:
            frame = result.frame
            if frame.number is None:
                results.append(result)
            else:
                progress((frame.number + 1, frame.number + frame.expected or None), unit="frames")

        try:
            with finding:
                summary = predict(
                    path,
                    finder,
                    output=str(written / "drawing"),
                    json=str(file),
                    progress=False,
                    on_result=collect,
                    stop_requested=lambda: stop.is_set() or stop_requested(),
                    keypoint_score=keypoint_score,
                    numbers=True,
                    track=track and _is_video(path),
                )
                # The page keeps files in folders of its own, which nobody needs to see.
                path_in_file, name_in_file = (json.dumps(text)[1:-1] for text in (path, Path(path).name))
                with open_text_output(file) as renamed, file.open() as lines:  # which may be many
                    renamed.writelines(line.replace(path_in_file, name_in_file) for line in lines)
        except PosenetError as error:
            # Where nothing could be read, the first error of a result says why.
            reason = next((result.error for result in results if result.error), error)
            raise gr.Error(to_html(reason, path), duration=MESSAGE_SECONDS, print_exception=False) from error
        finally:
            stops.pop(request.session_hash, None)
        for problem in summary.unreadable.values():
            gr.Warning(to_html(problem, path), duration=MESSAGE_SECONDS)
        # There is no drawing if the user has stopped the prediction before the first frame.
        drawing = next((written / "drawing").glob("*"), None)
        is_video = _is_video(path)
        headers = [predictor.skeleton.category, "score", "keypoints found", "box: left, top, right, bottom"]
        rows = [row for result in results for row in _rows(result)]
        return [
            gr.update(value=None if is_video else drawing, visible=drawing is not None and not is_video),
            gr.update(value=drawing if is_video else None, visible=drawing is not None and is_video),
            html.escape(str(summary)),
            gr.update(value={"headers": headers, "data": rows}, visible=bool(rows)),
            gr.update(value=file, visible=True),
        ]

    def to_html(error: Exception, path: str) -> str:
        return html.escape(str(error).replace(path, Path(path).name))

    def activate(path: str | None) -> list[Any]:
        """Show the controls that do something with a file; a video can be stopped until its people are found."""
        is_video = path is not None and _is_video(path)
        return [gr.update(interactive=path is not None), gr.update(visible=is_video), gr.update(visible=is_video)]

    def stop_video(request: Any) -> None:
        if request.session_hash in stops:
            stops[request.session_hash].set()

    for function in (find, stop_video):
        function.__annotations__["request"] = gr.Request  # by which Gradio gives it

    with gr.Blocks(title="posenet") as page:
        gr.Markdown(f"### posenet\nFinds {people} and their keypoints in photographs and videos, on this machine.")
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                file = gr.File(label="Photograph or video", height=140)
                track = gr.Checkbox(True, label=f"Track {people} from frame to frame", visible=False)
                stopper = gr.Button("Stop the video", size="sm", visible=False)
                scores = [
                    gr.Slider(0, 1, MIN_SCORE, step=0.01, label=f"Minimum score of {people}"),
                    gr.Slider(0, 1, KEYPOINT_MIN_SCORE, step=0.01, label="Minimum score of keypoints drawn"),
                ]
                again = gr.Button("Find again", size="sm", interactive=False)
            with gr.Column(scale=3):
                options = {"show_label": False, "interactive": False, "visible": False, "elem_classes": "drawing"}
                outputs = [
                    gr.Image(**options, buttons=["download", "fullscreen"]),
                    gr.Video(**options, buttons=["download"]),
                    gr.HTML(),
                    gr.Dataframe(show_label=False, interactive=False, visible=False, max_height=300),
                    gr.DownloadButton("Download all keypoints (JSON)", size="md", visible=False),
                ]
        chosen = gr.on([file.change, again.click], activate, file, [again, track, stopper], api_name=False)
        found = chosen.then(find, [file, *scores, track], outputs, api_name="find")
        found.then(lambda: gr.update(visible=False), None, stopper, api_name=False)
        stopper.click(stop_video, queue=False, api_name="stop")
    return page


def _is_video(path: str) -> bool:
    return find_sources([path])[0].kind != "image"


def _rows(result: Result) -> list[list[str]]:
    """The table of the people in a photograph."""
    rows = []
    for number, person in enumerate(result, 1):
        box = ", ".join(f"{value:.0f}" for value in person.box)
        rows.append([str(number), f"{person.score:.2f}", f"{person.found.sum()} of {len(person.found)}", box])
    return rows
