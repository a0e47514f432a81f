"""A page that finds people in photographs and videos, served by this machine (the extra ``app``)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import html
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posenet.errors import ConfigError, DataError, PosenetError
from posenet.inference.media.sources import find_sources
from posenet.inference.outputs.people_files import ImageIds, write_json
from posenet.inference.outputs.summary import PredictionSummary
from posenet.inference.predict import predict
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, MIN_SCORE, STYLES

LOCAL_HOST = "127.0.0.1"
"""The address that only programs on this machine reach."""
MAX_ROWS = 500
"""People in the table of a video; the file has all of them."""
HEIGHT = 560
"""Of the drawing on the page, in pixels."""
MESSAGE_SECONDS = 30
EMPTY_IS_ZERO = "(result, ...settings) => [result, ...settings.map(setting => setting ?? 0)]"
"""JavaScript that the page runs before ``draw``: somebody who types a score empties its field first."""

_log = logging.getLogger(__name__)


def app(
    predictor: Predictor | str | os.PathLike[str] = "simplepose",
    *,
    host: str = LOCAL_HOST,
    port: int | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Serve a page that finds people in photographs, videos and images of a camera, until Ctrl-C.

    The page loads nothing from other machines. What is sent to it stays in a temporary folder, which is deleted at the
    end.

    Args:
        predictor: what finds people: a predictor, or a name or a file for ``Predictor``.
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
        predictor = Predictor(predictor)
    # Gradio asks its server whether it is ready: without a log message, and not by way of a proxy.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    direct = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    os.environ["no_proxy"] = ",".join([direct, host, "localhost"])
    finding = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="posenet-app-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        page = make_page(predictor, Path(folder), stop_requested, finding)
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            run_history=False,
            footer_links=[],
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


def make_page(
    predictor: Predictor,
    folder: Path,
    stop_requested: Callable[[], bool],
    finding: contextlib.AbstractContextManager[Any],
) -> Any:
    """The page as ``gradio.Blocks``.

    Args:
        folder: where its files are made; it must be Gradio's temporary folder.
        finding: a lock that is held while people are found in a photograph or a video.
    """
    import gradio as gr

    stop = threading.Event()

    def require_scores(*scores: float) -> None:
        for score in scores:
            if not 0 <= score <= 1:  # Gradio's sliders accept NaN
                raise gr.Error(f"{score} is not a score between 0 and 1", print_exception=False)

    def find(
        path: str | None,
        min_score: float,
        keypoint_score: float,
        style: Any,
        track: bool,
        smooth: bool,
        progress: Any = gr.Progress(),  # noqa: B008  # Gradio knows it by this default
    ) -> Any:
        if path is None:
            return show()
        require_scores(min_score, keypoint_score)
        stop.clear()
        finder = copy.copy(predictor)
        finder.min_score = min_score
        try:
            with finding:
                if find_sources([path])[0].kind == "image":
                    finder.min_score = 0.0  # ``draw`` leaves people out, without another run of the network
                    return draw(_without_folder(finder(path)), min_score, keypoint_score, style)
                video, rows, file, summary = _predict_video(
                    path,
                    finder,
                    Path(tempfile.mkdtemp(dir=folder)),
                    lambda done, total: progress((done, total), unit="frames"),
                    stop_requested=lambda: stop.is_set() or stop_requested(),
                    keypoint_score=keypoint_score,
                    style=style,
                    track=track,
                    smooth=smooth,
                )
        except PosenetError as error:
            raise gr.Error(_to_html(error, path), duration=MESSAGE_SECONDS, print_exception=False) from error
        for problem in summary.unreadable.values():
            gr.Warning(_to_html(problem, path), duration=MESSAGE_SECONDS)
        more = f"; the table shows the first {MAX_ROWS}, the file all" if len(rows) == MAX_ROWS else ""
        return show(video=video, text=f"{summary}{more}", rows=rows, file=file)

    def draw(result: Result | None, min_score: float, keypoint_score: float, style: Any) -> Any:
        if result is None:  # a video is only predicted again when the user asks for it
            return gr.skip()
        require_scores(min_score, keypoint_score)
        kept = dataclasses.replace(result, people=[person for person in result if person.score >= min_score])
        file = Path(tempfile.mkdtemp(dir=folder)) / f"{kept.frame.source.stem}.json"
        with write_json(file, ImageIds([kept.frame.source])) as write:
            write(kept)
        drawing = kept.plot(style=style, keypoint_min_score=keypoint_score)
        return show(result, drawing[..., ::-1], text=str(kept), rows=_rows(kept), file=file)

    def show(
        result: Result | None = None,
        drawing: Any = None,
        video: Path | None = None,
        text: str = "",
        rows: list[list[str]] | None = None,
        file: Path | None = None,
    ) -> list[Any]:
        headers = [
            *(["second"] if video else []),
            predictor.skeleton.category,
            "score",
            "box",
            *predictor.skeleton.keypoints,
        ]
        return [
            result,
            gr.update(value=drawing, visible=video is None),
            gr.update(value=video, visible=video is not None),
            html.escape(text),
            gr.update(value={"headers": headers, "data": rows or []}, visible=bool(rows)),
            gr.update(value=file, interactive=file is not None),
        ]

    people = predictor.skeleton.people
    with gr.Blocks(title="posenet", analytics_enabled=False) as page:
        found = gr.State()
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                with gr.Tab("File"):
                    file = gr.File(label="Photograph or video", height=160)
                with gr.Tab("Camera"):
                    # In a mirrored image, left and right of a person would be exchanged.
                    camera = gr.Image(
                        label="Photograph",
                        sources=["webcam"],
                        webcam_options=gr.WebcamOptions(mirror=False),
                        type="filepath",
                        image_mode=None,
                    )
                min_score = gr.Slider(0, 1, MIN_SCORE, step=0.01, label=f"Minimum score of {people}")
                keypoint_score = gr.Slider(
                    0, 1, KEYPOINT_MIN_SCORE, step=0.01, label="Minimum score of keypoints drawn"
                )
                style = gr.Radio(STYLES, value=STYLES[0], label="Style of the drawing")
                with gr.Accordion("Videos"):
                    track = gr.Checkbox(True, label=f"Track {people} from frame to frame")
                    smooth = gr.Checkbox(False, label="Remove the jitter of keypoints")
                    with gr.Row():
                        again = gr.Button("Predict again", size="sm", min_width=100)
                        stopper = gr.Button("Stop", size="sm", min_width=60)
            with gr.Column(scale=3):
                options = {"label": people.capitalize(), "interactive": False, "height": HEIGHT}
                drawing = gr.Image(**options, format="jpeg", buttons=["download", "fullscreen"])
                video = gr.Video(**options, visible=False, buttons=["download"])
                text = gr.HTML()
                table = gr.Dataframe(
                    label="Keypoints: x, y in pixels (score)", interactive=False, visible=False, max_height=300
                )
                download = gr.DownloadButton("Download JSON", size="md", interactive=False)
        looks = [min_score, keypoint_score, style]
        outputs = [found, drawing, video, text, table, download]
        file.change(find, [file, *looks, track, smooth], outputs)
        again.click(find, [file, *looks, track, smooth], outputs)
        camera.change(find, [camera, *looks, track, smooth], outputs)
        stopper.click(stop.set, queue=False, api_name="stop")
        gr.on(
            [setting.change for setting in looks],
            draw,
            [found, *looks],
            outputs,
            js=EMPTY_IS_ZERO,
            show_progress="hidden",
        )
    return page


def _predict_video(
    path: str, predictor: Predictor, folder: Path, on_frame: Callable[[int, int | None], object], **options: Any
) -> tuple[Path | None, list[list[str]], Path, PredictionSummary]:
    """The drawing of a video, the first rows of the table, the file of all people, and what has been found.

    There is no drawing if the user has stopped the prediction before the first frame.
    """
    problems: list[DataError] = []
    rows: list[list[str]] = []
    file = folder / f"{Path(path).stem}.json"
    with write_json(file, ImageIds([])) as write:

        def collect(result: Result) -> None:
            if result.error is not None:
                problems.append(result.error)
                return
            write(_without_folder(result))
            rows.extend(_rows(result)[: MAX_ROWS - len(rows)])
            number = result.frame.number or 0
            on_frame(number + 1, number + result.frame.expected or None)

        drawings = folder / "drawing"
        try:
            summary = predict(path, predictor, output=str(drawings), progress=False, on_result=collect, **options)
        except DataError as error:
            raise (problems or [error])[0] from error  # the cause, which predict logs
    return next(drawings.glob("*"), None), rows, file, summary


def _rows(result: Result) -> list[list[str]]:
    """What the table shows of each person."""
    second = [] if result.seconds is None else [f"{result.seconds:.2f}"]
    rows = []
    for number, person in enumerate(result, 1):
        keypoints = [f"{x:.0f}, {y:.0f} ({score:.2f})" if score > 0 else "" for x, y, score in person.keypoints]
        box = ", ".join(f"{value:.0f}" for value in person.box)
        rows.append([*second, str(person.id or number), f"{person.score:.2f}", box, *keypoints])
    return rows


def _without_folder(result: Result) -> Result:
    """The result under the name of its file alone, because the page keeps files in folders of its own."""
    source = dataclasses.replace(result.frame.source, location=Path(Path(result.frame.source.name).name))
    return dataclasses.replace(result, frame=dataclasses.replace(result.frame, source=source))


def _to_html(error: Exception, path: str) -> str:
    """The text of an error about an uploaded file, as Gradio shows it."""
    return html.escape(str(error).replace(path, Path(path).name))
