"""Evaluating a network on a COCO keypoint split: predictions for all images, and the ten keypoint metrics."""

import contextlib
import copy
import itertools
import json
import logging
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.coco import CocoImage, list_image_files
from posenet.annotations.people import Split, read_split
from posenet.devices.ranks import SHARE_TIMEOUT_MINUTES, Ranks, run_in_all_processes
from posenet.errors import ConfigError, DataError
from posenet.files import check_outputs, write_atomically
from posenet.images import check_proportions, read_image
from posenet.inference.averaging import Letterbox
from posenet.inference.media.frames import READ_AHEAD, READ_THREADS, Frame, Source, split_into_blocks
from posenet.inference.networks import BackendName, device_of_process, is_exported_file
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.messages import pluralize
from posenet.person import Person
from posenet.progress_bar import progress_bar
from posenet.settings import ExifFrame
from posenet.skeleton import COCO, Skeleton
from posenet.threads import map_in_threads

_log = logging.getLogger(__name__)

METRICS = ("AP", "AP50", "AP75", "APM", "APL", "AR", "AR50", "AR75", "ARM", "ARL")
"""COCO's keypoint metrics, in the order of ``COCOeval.stats``."""

CocoResult = dict[str, Any]
"""One person in COCO's results format: image_id, category_id, keypoints, score."""


Sizes = tuple[tuple[int, int], tuple[int, int]]
"""The (height, width) of an image, and as annotated."""


@dataclass(frozen=True)
class Evaluation:
    """COCO's keypoint metrics of predictions; -1 where the split has no people to compute a value from."""

    metrics: dict[str, float]
    """Value of each of ``METRICS``, 0-1."""
    images: int
    """Number of images in the split."""
    results: Sequence[CocoResult] = field(default=(), compare=False, repr=False)
    """The predictions themselves, in COCO's results format, as ``evaluate`` returns them."""

    def table(self) -> str:
        """The metrics as two lines, names above values."""
        values = ["-" if value < 0 else f"{value:.3f}" for value in self.metrics.values()]
        return "\n".join("".join(f"{cell:>7}" for cell in line) for line in (list(self.metrics), values))


@run_in_all_processes("ranks", SHARE_TIMEOUT_MINUTES)
def evaluate(
    checkpoint: str | Path | Predictor,
    images: str | Path,
    annotations: str | Path,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    image_ids: Iterable[int] | None = None,
    exif_frame: ExifFrame | None = None,
    progress: bool = True,
    ranks: Ranks | None = None,
    **options: Any,
) -> Evaluation | None:
    """Predict every image of a COCO split and compare the people with the annotations.

    Args:
        checkpoint: a file, the name of published weights, or a predictor, which cannot be combined with ``options``.
        images: folder of the images. Where they were resized after they were annotated, the people are scaled to the
            annotated size, and a log message counts these images.
        annotations: COCO keypoint JSON, or an image-info JSON without annotations.
        output: where to write the predictions, as a COCO results file.
        overwrite: replace ``output`` if it exists. An input is never replaced.
        image_ids: evaluate only these images, each once.
        exif_frame: frame of the annotations where an image's EXIF orientation and size leave it open; None is that of
            the configuration in the checkpoint. Predictions are in pixels of the displayed image.
        progress: whether to show a progress bar.
        ranks: the processes that share the images; None means those of the process group that exists, or that a
            launcher has started, which all call this function. Rank 0 writes and returns what is found, the others
            return None. ``Ranks()`` is this process alone.
        options: those of ``Predictor``. ``amp`` is "off" by default, float32, and ``backend`` PyTorch for a
            checkpoint, so that the AP is the same on every machine.

    Returns:
        The metrics and the predictions; ``metrics["AP"]`` is the AP. None if the file contains no annotations.

    Raises:
        PosenetError: the checkpoint, the annotations, an image, the device or a setting cannot be used; or ``output``
            exists.
    """
    ranks = ranks or Ranks()
    if "min_score" in options:
        raise ConfigError("min_score has no effect on an evaluation, which keeps all people; leave it out")

    def check_output() -> None:
        if output is not None:
            files = [annotations] if isinstance(checkpoint, Predictor) else [annotations, checkpoint]
            inputs = itertools.chain(files, list_image_files(annotations, images))
            check_outputs([output], inputs, overwrite=overwrite)

    ranks.run_on_main(check_output)
    if isinstance(checkpoint, Predictor):
        predictor = copy.copy(checkpoint)
        if options:
            raise ConfigError(
                f"{', '.join(options)} cannot be changed for a predictor; evaluate its checkpoint instead"
            )
    else:
        options = {"amp": "off", "backend": backend_of_evaluation(checkpoint)} | options
        device, backend = options.get("device", "auto"), options["backend"]
        options["device"] = ranks.run_on_all(lambda: device_of_process(checkpoint, device, backend, ranks))
        predictor = ranks.run_on_all(lambda: Predictor(checkpoint, **options))
    predictor.min_score = 0.0  # people with low scores raise the AP
    frame = exif_frame or predictor.exif_frame
    split = ranks.run_on_all(lambda: read_split(annotations, image_ids, predictor.skeleton, images, frame))
    blocks = ranks.run_on_all(lambda: find_annotated_images(images, split.images, predictor.settings.batch_size))
    mine = [*itertools.chain(*ranks.share(blocks))]

    def predict_share() -> tuple[list[CocoResult], list[Sizes]]:
        results: list[CocoResult] = []
        sizes: list[Sizes] = []
        found = predict_annotated_images(predictor, mine)
        with contextlib.closing(found), progress_bar(title="predict", total=len(mine), disable=not progress) as bar:
            for item in found:
                results += item.to_coco(split.category)
                sizes.append(item.sizes)
                bar.update()
        return results, sizes

    shares = ranks.gather_objects(ranks.run_on_all(predict_share))
    if not ranks.is_main:
        return None
    results, sizes = (list(itertools.chain(*parts)) for parts in zip(*shares))
    log_resized(sizes)
    position = {image.id: index for index, image in enumerate(split.images)}
    results.sort(key=lambda result: position[result["image_id"]])
    if output is not None:
        write_atomically(output, json.dumps(results).encode())
    if not split.people:
        return None
    return replace(compute_coco_metrics(results, split, predictor.skeleton), results=results)


def backend_of_evaluation(checkpoint: str | Path) -> BackendName:
    """PyTorch for a checkpoint, so that the AP is the same on every machine."""
    return "auto" if is_exported_file(checkpoint) else "torch"


class AnnotatedResult(NamedTuple):
    """The people in an annotated image."""

    image: CocoImage
    result: Result
    """In pixels of the image that was read."""

    @property
    def sizes(self) -> Sizes:
        return self.result.frame.size, (self.image.height, self.image.width)

    def to_coco(self, category: int) -> list[CocoResult]:
        """The people in COCO's results format, in pixels of the annotated size; ``category`` is that of the split."""
        people = scale_people(self.result.people, *self.sizes)
        return [person.to_coco_result(self.image.id, category, fill_missing=True) for person in people]


def predict_annotated_images(
    predictor: Predictor, sources: Iterable[tuple[CocoImage, Source]]
) -> Generator[AnnotatedResult, None, None]:
    """Predict images in order; ``DataError`` if one cannot be read, or has other proportions than annotated."""

    def read(item: tuple[CocoImage, Source]) -> Frame:
        image, source = item
        frame = Frame(source, read_image(source.name))
        check_proportions(source.name, frame.size, (image.height, image.width))
        return frame

    to_read, images = itertools.tee(sources)
    frames = map_in_threads(read, to_read, workers=READ_THREADS, ahead=READ_AHEAD)
    with contextlib.closing(predictor.find_people(frames)) as results:
        for result, (image, _) in zip(results, images):
            yield AnnotatedResult(image, result)


def scale_people(people: Sequence[Person], size: tuple[int, int], other_size: tuple[int, int]) -> Sequence[Person]:
    """People in pixels of an image of (height, width) ``size``, in pixels of the same image in another size."""
    return people if size == other_size else Letterbox(size, size).map_back(people, other_size)


def log_resized(sizes: Iterable[Sizes]) -> None:
    """Log how many images have another size than annotated."""
    if resized := [pair for pair in sizes if pair[0] != pair[1]]:
        (height, width), (annotated_height, annotated_width) = resized[0]
        example = f"{width} x {height} instead of {annotated_width} x {annotated_height}"
        number = pluralize(len(resized), "image")
        _log.warning("%s of another size than annotated, such as %s; people are scaled to that", number, example)


def find_annotated_images(
    folder: str | Path, images: Iterable[CocoImage], batch_size: int
) -> list[list[tuple[CocoImage, Source]]]:
    """The images and their files, in blocks as ``split_into_blocks`` makes them; ``DataError`` if a file is missing.

    Images of the same shape follow each other, so that the network gets full batches.
    """
    ordered = sorted(images, key=lambda image: image.width / image.height)
    paths = [Path(folder, image.file_name) for image in ordered]
    if missing := [path for path in paths if not os.path.isfile(path)]:
        raise DataError(
            f"{len(missing)} of {len(paths)} images are missing, for example {missing[0]}; check the image folder"
        )
    blocks = split_into_blocks([Source("image", path) for path in paths], batch_size)
    remaining = iter(ordered)
    return [[(next(remaining), source) for source in block] for block in blocks]


def compute_coco_metrics(results: Sequence[Mapping[str, Any]], split: Split, skeleton: Skeleton = COCO) -> Evaluation:
    """Compare predictions in COCO's results format with all people of an annotated split, by pycocotools."""
    from pycocotools.coco import COCO as CocoApi
    from pycocotools.cocoeval import COCOeval

    truth = CocoApi()
    # pycocotools treats a match with id 0 as no match, so the annotations are numbered from 1.
    truth.dataset = {
        "images": [asdict(image) for image in split.images],
        "categories": [{"id": split.category}],
        "annotations": [person | {"id": number} for number, person in enumerate(split.people, 1)],
    }
    with open(os.devnull, "w", encoding="utf-8") as silence, contextlib.redirect_stdout(silence):
        truth.createIndex()
        # pycocotools changes the dictionaries that it receives, so it gets copies.
        predictions = truth.loadRes([dict(result) for result in results]) if results else CocoApi()
        evaluation = COCOeval(truth, predictions, "keypoints")
        evaluation.params.kpt_oks_sigmas = np.array(skeleton.sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return Evaluation(dict(zip(METRICS, evaluation.stats.tolist())), len(split.images))
