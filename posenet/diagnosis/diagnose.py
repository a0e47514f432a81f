"""Diagnose a COCO results file: which errors it has, and what each kind of them costs.

After Ronchi and Perona, "Benchmarking and Error Diagnosis in Multi-Instance Pose Estimation" (ICCV 2017).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.people import read_split
from posenet.annotations.skeleton_draft import skeleton_of
from posenet.diagnosis.average_precision import Outcome, average_precision, evaluate
from posenet.diagnosis.error_kinds import CORRECTIONS, LOCALISATION, MISSED_AT_50, SIZES, UNCORRECTED
from posenet.diagnosis.keypoint_errors import MatchedResults, count_kinds
from posenet.diagnosis.matching import MAX_RESULTS, Truth
from posenet.diagnosis.results_file import parse_results, read_results
from posenet.diagnosis.slices import Slice, measure_sizes
from posenet.errors import DataError
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton, load_skeleton


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Everything that is known about one results file; ``diagnose`` documents the definitions.

    N results and G annotations, both sorted by image; F keypoints in the order of the annotation file. Dictionaries by
    kind of error are in the order of ``CORRECTIONS``.
    """

    name: str
    """How the report calls the results: the name of their file. Escape it in HTML."""
    images: Sequence[CocoImage]
    """All images of the annotation file, by id: indices of images count in this order. Escape their names in HTML."""
    matched: MatchedResults
    """The results, the annotations and the skeleton; who matches whom, and the kind of every keypoint."""
    outcome: Outcome
    """What the COCO evaluation decides about the results as they are."""
    metrics: Mapping[str, float]
    """COCO's ten keypoint metrics, ``AP``, ``AP50`` ... ``ARL``; -1 without people of that size."""
    precision: Mapping[str, np.ndarray]
    """(10, 101) precision at each OKS threshold and recall 0, 0.01 ... 1, by stage: of the results as they are
    (``UNCORRECTED``), then after correcting each kind of error and all before it. The area between two stages is the AP
    that a kind of error costs. Between ``background`` and ``missed`` stands ``MISSED_AT_50``."""
    alone_precision: Mapping[str, np.ndarray]
    """The same after correcting each kind of error, or ``MISSED_AT_50``, and nothing else."""
    sizes: Sequence[Slice]
    """The people of each size."""

    @property
    def ap(self) -> float:
        return self.metrics["AP"]

    @property
    def corrected(self) -> dict[str, float]:
        """AP after correcting each kind of error and all before it. The last is 1."""
        return {kind: average_precision(self.precision[kind]) for kind in CORRECTIONS}

    @property
    def alone(self) -> dict[str, float]:
        """AP after correcting each kind of error and nothing else."""
        return {kind: average_precision(self.alone_precision[kind]) for kind in CORRECTIONS}

    @property
    def costs(self) -> dict[str, float]:
        """AP that each kind of error costs: its gain after those before it. The costs and the AP add up to 1."""
        stages = [self.ap, *self.corrected.values()]
        return {kind: after - before for kind, before, after in zip(CORRECTIONS, stages, stages[1:])}

    @property
    def counts(self) -> dict[str, int]:
        """Number of keypoints of each kind, of all labelled keypoints of matched people."""
        return count_kinds(self.matched.kinds)

    @property
    def keypoints(self) -> dict[str, dict[str, int]]:
        """The same for every keypoint of the annotation file, by name, such as ``left_wrist``."""
        names = self.matched.skeleton.file_keypoints
        return {name: count_kinds(kinds) for name, kinds in zip(names, self.matched.kinds.T)}

    @property
    def background_by_threshold(self) -> np.ndarray:
        """(10,) number of results that match nobody at each OKS threshold."""
        return np.asarray(self.outcome.background.sum(axis=1))

    @property
    def missed_by_threshold(self) -> np.ndarray:
        """(10,) number of labelled people whom no result matches at each OKS threshold."""
        return np.asarray(self.outcome.missed.sum(axis=1))

    @property
    def background(self) -> int:
        """Number of results that match nobody at OKS 0.5."""
        return int(self.background_by_threshold[0])

    @property
    def missed(self) -> int:
        """Number of labelled people whom no result matches at OKS 0.5."""
        return int(self.missed_by_threshold[0])

    @property
    def num_people(self) -> int:
        """Number of labelled people."""
        return self.outcome.num_people

    @property
    def num_results(self) -> int:
        """Number of results that the COCO evaluation uses: at most 20 of an image."""
        return len(self.matched.results)

    @property
    def num_left_out(self) -> int:
        """Number of results that it does not use."""
        return int(self.matched.results.left_out.sum())

    @property
    def full_images(self) -> dict[str, int]:
        """The images with more than 20 labelled people, of whom some are missed whatever the results are, and the
        numbers of people, by file name."""
        truth = self.matched.truth
        people = np.bincount(truth.image[truth.people], minlength=len(self.images)).tolist()
        return {image.file_name: count for image, count in zip(self.images, people) if count > MAX_RESULTS}

    def describe_limit(self) -> str:
        """What COCO's limit of results leaves out, in a sentence; empty if it leaves out nothing."""
        full, skeleton = self.full_images, self.matched.skeleton
        if not full and not self.num_left_out:
            return ""
        text = f"COCO's evaluation uses the {MAX_RESULTS} best results of an image: {self.num_left_out} left out"
        if full:
            beyond = skeleton.count(sum(full.values()) - MAX_RESULTS * len(full), "missed")
            worst = max(full, key=lambda name: full[name])
            where = f"{pluralize(len(full), 'image')}, such as {worst} ({skeleton.count(full[worst])})"
            text += f"; {beyond} whatever the results are, in {where}"
        return text


def diagnose(
    annotations: str | Path,
    results: str | Path | Sequence[Mapping[str, Any]],
    *,
    skeleton: Skeleton | str | Path | None = None,
    image_ids: Collection[int] | None = None,
    images_dir: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    name: str | None = None,
    progress: bool = True,
) -> Diagnosis:
    """Diagnose results for the images of a COCO keypoint file.

    Results are matched to people as in the COCO evaluation, but at OKS 0.1. Every keypoint of a matched result, where
    the person's is labelled, is of one kind. Its similarity to a true keypoint is exp(-d^2 / (2 area (2 sigma)^2)), as
    in the OKS. m is the highest similarity to the same or the mirrored keypoint of any person of the image:

    - good: m >= 0.85, at the right keypoint; jitter: 0.5 <= m < 0.85 there;
    - inversion: m >= 0.5, at the mirrored keypoint of the same person;
    - swap: m >= 0.5, at the same or the mirrored keypoint of another person;
    - miss: m < 0.5.

    The other kinds of errors are those of whole people. *score*: the results do not rank by their OKS with the people.
    *background*: a result matches nobody. *missed*: no result matches a person. The last two depend on the OKS
    threshold of the match.

    The AP is computed again after correcting each kind of error, in the order of ``CORRECTIONS`` and alone.
    Corrected keypoints lie at the distance of a similarity of 0.85 (jitter), 0.5 (miss) or m (inversion, swap) from the
    true ones. Corrected scores are the OKS of each result with its person. Background results are removed, and missed
    people are removed from the truth, at each OKS threshold separately. So nothing remains to be corrected, and the
    last AP is 1. Before that, only the people missed at OKS 0.50 are removed: what is left then are people who were
    found, but not exactly enough for the stricter thresholds.

    Args:
        annotations: COCO keypoint JSON.
        results: COCO results file, or its content; of any network.
        skeleton: of both files, or the path of its file; None is COCO's, or one drafted from other annotations.
        image_ids: restricts the images of the annotation file.
        images_dir: folder of the images, where annotations may be of stored pixels that EXIF turns; results are in
            pixels of the displayed image.
        exif_frame: frame of the annotations where the size of such an image leaves it open.
        name: how the report calls the results; by default, the name of the file.

    Raises:
        DataError: a file cannot be used, or has other keypoints than the skeleton; the annotations contain no people.
    """
    skeleton = skeleton_of(annotations) if skeleton is None else load_skeleton(skeleton)
    split = read_split(annotations, image_ids, skeleton, images_dir, exif_frame)
    truth = Truth.from_split(split, skeleton)
    if not truth.people.any():
        raise DataError(
            f"{annotations} contains no people with labelled keypoints to compare the results with; "
            "give the person_keypoints_*.json of a validation set"
        )
    if isinstance(results, (str, Path)):
        checked = read_results(results, split, skeleton)
        name = name or Path(results).name
    else:
        name = name or "results"
        checked = parse_results(list(results), split, skeleton, name)
    images = sorted(split.images, key=lambda image: image.id)
    matched = MatchedResults.of(checked, truth, skeleton)
    outcome = evaluate(matched)
    precision, alone = _correct(matched, outcome, title=f"diagnose {name}", progress=progress)
    by_size = {name: evaluate(matched, *limits) for name, limits in SIZES.items()}
    return Diagnosis(
        name=name,
        images=images,
        matched=matched,
        outcome=outcome,
        metrics=_compute_metrics(outcome, by_size),
        precision=precision,
        alone_precision=alone,
        sizes=measure_sizes(matched, outcome.missed[0], by_size),
    )


def _correct(
    matched: MatchedResults, outcome: Outcome, *, title: str, progress: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(10, 101) precision after correcting each kind of error and all before it, and after correcting it alone."""
    in_turn = {UNCORRECTED: outcome.precision()}
    alone = {}
    ranked = outcome
    kinds = (*LOCALISATION, "score")
    for number, kind in enumerate(progress_bar(kinds, title, unit="kind", leave=False, disable=not progress), 1):
        ranked = evaluate(matched.correct(CORRECTIONS[:number]))
        in_turn[kind] = ranked.precision()
        alone[kind] = evaluate(matched.correct([kind])).precision()
    ranked = ranked.without_background()
    in_turn["background"] = ranked.precision()
    alone["background"] = outcome.without_background().precision()
    for precision, before in ((in_turn, ranked), (alone, outcome)):
        precision[MISSED_AT_50] = before.precision_without(before.missed & before.missed[0])
        precision["missed"] = before.precision_without(before.missed)
    return in_turn, alone


def _compute_metrics(outcome: Outcome, by_size: Mapping[str, Outcome]) -> dict[str, float]:
    """COCO's ten keypoint metrics, as ``pycocotools`` defines them."""
    medium, large = by_size["medium"], by_size["large"]
    precision, recall = outcome.precision(), outcome.recall()
    at_50, at_75 = 0, 5  # indices of these OKS thresholds
    return {
        "AP": average_precision(precision),
        "AP50": average_precision(precision[at_50]),
        "AP75": average_precision(precision[at_75]),
        "APM": average_precision(medium.precision()),
        "APL": average_precision(large.precision()),
        "AR": float(recall.mean()),
        "AR50": float(recall[at_50]),
        "AR75": float(recall[at_75]),
        "ARM": float(medium.recall().mean()),
        "ARL": float(large.recall().mean()),
    }
