"""Evaluating a checkpoint on a COCO keypoint split: ``evaluate``, as ``tools/evaluate.py`` does it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posenet.errors import ConfigError
from posenet.files import check_outputs
from posenet.inference import coco_evaluation
from posenet.inference.backends.loading import BackendName
from posenet.inference.coco_evaluation import Evaluation, SplitOptions
from posenet.inference.predictor import Predictor
from posenet.inference.shared_work import Team
from posenet.settings import Config, ExifFrame

if TYPE_CHECKING:
    from posenet.devices.precision import Amp


def evaluate(
    checkpoint: str | Path | Predictor,
    images: str | Path,
    annotations: str | Path,
    *,
    output: str | Path | None = None,
    image_ids: Collection[int] | None = None,
    exif_frame: ExifFrame | None = None,
    config: Config | None = None,
    device: str = "auto",
    amp: Amp | Literal["auto"] = "off",
    backend: BackendName | None = None,
    progress: bool = True,
    team: Team | None = None,
    **overrides: Any,
) -> Evaluation | None:
    """Predict every image of a COCO split and compare the people with the annotations.

    Args:
        checkpoint: a file, the name of registered weights, or a predictor, which has its own settings: it cannot be
            combined with ``config``, ``device``, ``amp``, ``backend`` or ``overrides``.
        images: folder of the images.
        annotations: COCO keypoint JSON, or an image-info JSON without annotations.
        output: where to write the predictions, as a COCO results file.
        image_ids: evaluate only these images.
        exif_frame: frame of the annotations where an image's EXIF orientation and size leave it open; None for
            ``data.exif_frame`` of the configuration, or its default if ``checkpoint`` is a predictor.
        config: replaces the configuration in the checkpoint.
        device: auto, cpu, cuda, cuda:1, mps and so on.
        amp: precision of the network; float32 by default, so that the AP is the same on every machine.
        backend: the software that runs the network; see ``Predictor.from_checkpoint``.
        progress: whether to show a progress bar.
        team: the processes that share the images; None if this process predicts them all. Rank 0 writes the
            predictions and returns the metrics, and the others return None.
        overrides: keys of the configuration's ``inference`` section, such as ``flip=True``.

    Returns:
        The metrics and the predictions; ``metrics["AP"]`` is the AP. None if the file contains no annotations.

    Raises:
        PosenetError: the checkpoint, the annotations, an image, the device or a setting cannot be used.
    """
    if output is not None:
        inputs = [annotations] if isinstance(checkpoint, Predictor) else [annotations, checkpoint]
        check_outputs([Path(output)], map(Path, inputs))
    if isinstance(checkpoint, Predictor):
        _require_no_settings(config, device, amp, overrides | ({"backend": backend} if backend else {}))
        predictor = checkpoint
        used_config = Config()
    else:
        predictor, used_config = Predictor.load(
            checkpoint, config=config, device=device, amp=amp, backend=backend, parallel=True, **overrides
        )
    options = SplitOptions(
        exif_frame=exif_frame or used_config.data.exif_frame,
        skeleton=predictor.skeleton,
        team=team,
        unit_size=predictor.settings.batch_size,
        progress=progress,
    )
    return coco_evaluation.evaluate(
        predictor.stream, images, annotations, options, results_path=output, image_ids=image_ids
    )


def _require_no_settings(config: Config | None, device: str, amp: str, overrides: dict[str, Any]) -> None:
    """``ConfigError`` if any setting is given: it would have no effect on a predictor."""
    given = list(overrides)
    given += ["config"] * (config is not None)
    given += ["device"] * (device != "auto")
    given += ["amp"] * (amp != "off")
    if given:
        raise ConfigError(f"{', '.join(given)} cannot be changed for a predictor; evaluate its checkpoint file instead")
