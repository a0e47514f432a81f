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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError, DataError, PosenetError
from posenet.files import open_text_output
from posenet.inference.media.sources import find_sources
from posenet.inference.predict import predict
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, MIN_SCORE

LOCAL_HOST = "127.0.0.1"
"""The address that only programs on this machine reach."""
MAX_ROWS = 500
"""People in the table of a video; the file has all of them."""
MESSAGE_SECONDS = 30
_STYLE = """
.drawing img, .drawing video { width: auto !important; max-width: 100%; max-height: 80vh; margin: 0 auto; }
.drawing .image-frame, .drawing .image-container, .drawing button { height: auto !important; }
"""
"""Photographs have their own size, and fit the window."""

_log = logging.getLogger(__name__)


def app(
    predictor: Predictor | str | os.PathLike[str] = "simplepose",
    *,
    name: str = "",
    host: str = LOCAL_HOST,
    port: int | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Serve a page that finds people in photographs and videos, until Ctrl-C.

    The page loads nothing from other machines. What is sent to it stays in a temporary folder until the end.

    Args:
        predictor: what finds people: a predictor, or a name or a file for ``Predictor``.
        name: what the page calls the network; by default what ``predictor`` names.
        host: address to listen at; "0.0.0.0" lets everybody who reaches this machine use the page.
        port: port to listen at; None is the first free one from 7860 on.
        stop_requested: checked all the time; true ends the page, and the prediction of a video.

    Raises:
        ConfigError: Gradio is not installed, or the address or the port cannot be used.
        CheckpointError: the weights cannot be loaded.
    """
    require_gradio()
    try:
        socket.create_server((host, port or 0)).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}, port {port or 'any'}: {error}; choose another") from error
    if not isinstance(predictor, Predictor):
        name = name or Path(predictor).name
        predictor = Predictor(predictor)
    # Gradio asks its server whether it is ready: without a log message, and not by way of a proxy.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    direct = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    os.environ["no_proxy"] = ",".join([direct, host, "localhost"])
    with tempfile.TemporaryDirectory(prefix="posenet-app-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        finding = threading.Lock()
        page = _make_page(predictor, name or type(predictor.network).__name__, Path(folder), stop_requested, finding)
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


def require_gradio() -> None:
    """Import Gradio without its telemetry; ``ConfigError`` if it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("the page needs the package Gradio: pip install 'simplepose[app]'") from error


def _make_page(
    predictor: Predictor, name: str, folder: Path, stop_requested: Callable[[], bool], finding: threading.Lock
) -> Any:
    """The page, with its files in Gradio's temporary ``folder``; the lock is held while people are found."""
    import gradio as gr

    people = predictor.skeleton.people
    stops: dict[str | None, threading.Event] = {}  # of the user whose file is looked at

    def show(
        drawing: Path | None = None, is_video: bool = False, text: str = "", rows: Any = (), file: Path | None = None
    ) -> list[Any]:
        headers = [predictor.skeleton.category, "score", "keypoints found", "box: left, top, right, bottom"]
        table = {"headers": ["second", *headers] if is_video else headers, "data": list(rows)}
        return [
            gr.update(value=None if is_video else drawing, visible=drawing is not None and not is_video),
            gr.update(value=drawing if is_video else None, visible=is_video),
            html.escape(text),
            gr.update(value=table, visible=bool(rows)),
            gr.update(value=file, visible=file is not None),
        ]

    def to_html(error: Exception, path: str) -> str:
        return html.escape(str(error).replace(path, Path(path).name))

    def find(
        path: str | None,
        min_score: float,
        keypoint_score: float,
        track: bool,
        smooth: bool,
        request: Any,
        progress: Any = gr.Progress(),  # noqa: B008  # Gradio knows it by this default
    ) -> Any:
        if path is None:
            return show()
        for score in (min_score, keypoint_score):
            if not 0 <= score <= 1:  # Gradio's sliders refuse None, and accept NaN
                raise gr.Error(f"{score} is not a score between 0 and 1", print_exception=False)
        finder = copy.copy(predictor)
        finder.min_score = min_score
        written = Path(tempfile.mkdtemp(dir=folder))
        file = written / f"{Path(path).stem}.json"
        problems: list[DataError] = []
        rows: list[list[str]] = []
        stop = stops[request.session_hash] = threading.Event()

        def collect(result: Result) -> None:
            frame = result.frame
            if result.error is not None:
                problems.append(result.error)
                return
            rows.extend(_rows(result)[: MAX_ROWS - len(rows)])
            if frame.number is not None:
                progress((frame.number + 1, frame.number + frame.expected or None), unit="frames")

        try:
            is_video = find_sources([path])[0].kind != "image"
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
                    track=track and is_video,
                    smooth=smooth and is_video,
                )
                # The page keeps files in folders of its own, which nobody needs to see.
                path_in_file, name_in_file = (json.dumps(text)[1:-1] for text in (path, Path(path).name))
                with open_text_output(file) as renamed, file.open() as lines:  # which may be many
                    renamed.writelines(line.replace(path_in_file, name_in_file) for line in lines)
        except PosenetError as error:
            # Where nothing could be read, the first problem says why.
            text = to_html(problems[0] if problems else error, path)
            raise gr.Error(text, duration=MESSAGE_SECONDS, print_exception=False) from error
        finally:
            stops.pop(request.session_hash, None)
        for problem in summary.unreadable.values():
            gr.Warning(to_html(problem, path), duration=MESSAGE_SECONDS)
        more = f"; the table shows the first {MAX_ROWS}, the file all" if len(rows) == MAX_ROWS else ""
        # There is no drawing if the user has stopped the prediction before the first frame.
        return show(next((written / "drawing").glob("*"), None), is_video, f"{summary}{more}", rows, file)

    def activate(path: str | None) -> list[Any]:
        """Show the controls that do something with a file; a video can be stopped until its people are found."""
        is_video = path is not None and find_sources([path])[0].kind != "image"
        return [gr.update(interactive=path is not None), *(gr.update(visible=is_video) for _ in range(3))]

    def stop_video(request: Any) -> None:
        if request.session_hash in stops:
            stops[request.session_hash].set()

    for function in (find, stop_video):
        function.__annotations__["request"] = gr.Request  # by which Gradio gives it

    has_example = find_spec("posenet.synthetic") is not None and predictor.skeleton.category == "person"
    with gr.Blocks(title="posenet") as page:
        gr.Markdown(
            f"### {html.escape(name)}\nFinds {people} and their keypoints in photographs and videos, on this machine."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                file = gr.File(label="Photograph or video", height=140)
                example = gr.Button("Try an example", size="sm", visible=has_example)
                track = gr.Checkbox(True, label=f"Track {people} from frame to frame", visible=False)
                smooth = gr.Checkbox(False, label="Remove the jitter of keypoints", visible=False)
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
        settings = [*scores, track, smooth]
        chosen = gr.on([file.change, again.click], activate, file, [again, track, smooth, stopper], api_name=False)
        found = chosen.then(find, [file, *settings], outputs, api_name="find")
        found.then(lambda: gr.update(visible=False), None, stopper, api_name=False)
        example.click(lambda: _draw_example(folder), None, file, api_name=False)
        stopper.click(stop_video, queue=False, api_name="stop")
    return page


def _draw_example(folder: Path) -> str:
    """The path of a drawn photograph in a new folder: several users may ask at the same time."""
    from posenet.synthetic.dataset import write_dataset

    own = Path(tempfile.mkdtemp(dir=folder))
    write_dataset(own, train=0, val=1, workers=1)
    return str(next(own.glob("val2017/*")))


def _rows(result: Result) -> list[list[str]]:
    second = [] if result.seconds is None else [f"{result.seconds:.2f}"]
    rows = []
    for number, person in enumerate(result, 1):
        box = ", ".join(f"{value:.0f}" for value in person.box)
        found = f"{person.found.sum()} of {len(person.found)}"
        rows.append([*second, str(person.id or number), f"{person.score:.2f}", found, box])
    return rows
