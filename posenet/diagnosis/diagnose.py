"""Diagnose a COCO results file: which errors it has, and what each kind of them costs.

After Ronchi and Perona, "Benchmarking and Error Diagnosis in Multi-Instance Pose Estimation" (ICCV 2017).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.people import read_split
from posenet.diagnosis.keypoint_errors import CORRECTIONS, LOCALISATION, MatchedResults, count_kinds
from posenet.diagnosis.matching import (
    MAX_RESULTS,
    OKS_THRESHOLDS,
    SIZES,
    Outcome,
    Truth,
    average_precision,
    read_results,
    select_rows,
    size_numbers,
)
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton

DIAGNOSIS_FILE = "diagnosis.json"
MISSED_AT_50 = "missed_at_50"
"""The part of ``missed`` that is left where a result at OKS 0.50 counts as found at every threshold."""
UNCORRECTED = "uncorrected"
"""The results as they are, where they stand beside the corrected ones."""


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
    sizes: Sequence[Mapping[str, Any]]
    """For each size of which there are people its ``name``, one of ``SIZES``; the number of ``people``; their ``ap``,
    COCO's APM and APL; the ``counts`` of keypoints of each kind in their results; how many are ``missed`` at 0.5."""

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
    def background_by_threshold(self) -> list[int]:
        """Number of results that match nobody at each OKS threshold; the first is 0.5."""
        counts: list[int] = self.outcome.background.sum(axis=1).tolist()
        return counts

    @property
    def missed_by_threshold(self) -> list[int]:
        """Number of labelled people whom no result matches at each OKS threshold; the first is 0.5."""
        counts: list[int] = self.outcome.missed.sum(axis=1).tolist()
        return counts

    @property
    def num_people(self) -> int:
        """Number of labelled people."""
        return self.outcome.num_people

    @property
    def num_results(self) -> int:
        """Number of results that the COCO evaluation uses: at most 20 of an image."""
        return len(self.matched.results.scores)

    def describe_limit(self) -> str:
        """What COCO's limit of results leaves out, in a sentence; empty if it leaves out nothing."""
        truth, num_left_out = self.matched.truth, self.matched.results.num_left_out
        people = np.bincount(truth.image[truth.people])
        beyond, worst = int(np.maximum(people - MAX_RESULTS, 0).sum()), int(people.argmax())
        text = f"COCO's evaluation uses the {MAX_RESULTS} best results of an image: {num_left_out} left out"
        if beyond:
            count = self.matched.skeleton.count
            where = f"{self.images[worst].file_name} ({count(int(people[worst]))})"
            text += f"; {count(beyond, 'missed')} whatever the results are, such as in {where}"
        return text if beyond or num_left_out else ""


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
    the person's is labelled, is of one kind. m is its highest similarity (``skeleton.oks``) to the same or the mirrored
    keypoint of any person of the image:

    - good: m >= 0.85, at the right keypoint; jitter: 0.5 <= m < 0.85 there;
    - inversion: m >= 0.5, at the mirrored keypoint of the same person;
    - swap: m >= 0.5, at the same or the mirrored keypoint of another person;
    - miss: m < 0.5.

    The other kinds of errors are those of whole people. *score*: the results do not rank by their OKS with the people.
    *background*: a result matches nobody. *missed*: no result matches a person. The last two depend on the OKS
    threshold of the match.

    The AP is computed again after correcting each kind of error, in the order of ``CORRECTIONS`` and alone. Corrected
    keypoints are nearer to the true ones, see ``MatchedResults.correct``; corrected scores are the OKS of each result
    with its person. Background results and missed people are removed, at each OKS threshold separately: in turn, first
    the people missed at OKS 0.50, so that the others were found, but not exactly enough. The last AP is 1.

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
    if skeleton is None:
        with contextlib.suppress(ModuleNotFoundError):  # a part of the package that may be left out
            from posenet.annotations.skeleton_draft import skeleton_of

            skeleton = skeleton_of(annotations)
    skeleton = load_skeleton(skeleton or COCO)
    num_keypoints = len(skeleton.file_keypoints)
    split = read_split(annotations, image_ids, skeleton, images_dir, exif_frame)
    images = sorted(split.images, key=lambda image: image.id)  # in the order of pycocotools
    index_of = {image.id: index for index, image in enumerate(images)}
    truth = Truth.of(split.people, index_of, num_keypoints)
    if not truth.people.any():
        raise DataError(
            f"{annotations} contains no people with labelled keypoints to compare the results with; "
            "give the person_keypoints_*.json of a validation set"
        )
    name = name or (Path(results).name if isinstance(results, (str, Path)) else "results")
    matched = MatchedResults.of(read_results(results, index_of, split.categories, num_keypoints), truth, skeleton)
    outcome = matched.evaluate()
    by_size = {size: matched.evaluate(*limits) for size, limits in SIZES.items()}
    precision, alone = _correct(matched, outcome, title=f"diagnose {name}", progress=progress)
    metrics = _compute_metrics(outcome, by_size)
    sizes = _measure_sizes(matched, outcome, by_size)
    return Diagnosis(name, images, matched, outcome, metrics, precision, alone, sizes)


def _correct(
    matched: MatchedResults, outcome: Outcome, *, title: str, progress: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(10, 101) precision after correcting each kind of error and all before it, and after correcting it alone."""
    in_turn = {UNCORRECTED: outcome.precision()}
    alone = {}
    ranked = outcome
    kinds = (*LOCALISATION, "score")
    for number, kind in enumerate(progress_bar(kinds, title, unit="kind", leave=False, disable=not progress), 1):
        ranked = matched.correct(CORRECTIONS[:number]).evaluate()
        in_turn[kind] = ranked.precision()
        alone[kind] = matched.correct([kind]).evaluate().precision()
    ranked = replace(ranked, counted=ranked.correct)  # without the background
    in_turn["background"] = ranked.precision()
    alone["background"] = replace(outcome, counted=outcome.correct).precision()
    for precision, before in ((in_turn, ranked), (alone, outcome)):
        precision[MISSED_AT_50] = before.precision(before.missed & before.missed[0])
        precision["missed"] = before.precision(before.missed)
    return in_turn, alone


def _compute_metrics(outcome: Outcome, by_size: Mapping[str, Outcome]) -> dict[str, float]:
    """COCO's ten keypoint metrics, as ``pycocotools`` defines them."""
    outcomes = {"": outcome, "M": by_size["medium"], "L": by_size["large"]}
    precision = {name: of_size.precision() for name, of_size in outcomes.items()}
    recall = {name: of_size.recall() for name, of_size in outcomes.items()}
    for name, threshold in (("50", 0), ("75", 5)):
        precision[name] = precision[""][threshold]
        recall[name] = recall[""][threshold]
    order = ("", "50", "75", "M", "L")
    return {f"AP{name}": average_precision(precision[name]) for name in order} | {
        f"AR{name}": float(recall[name].mean()) for name in order
    }


def _measure_sizes(matched: MatchedResults, outcome: Outcome, by_size: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """See ``Diagnosis.sizes``; ``by_size`` has the outcomes of these people alone."""
    groups = []
    for number, (name, of_size) in enumerate(by_size.items()):
        people = (size_numbers(matched.truth.areas) == number) & matched.truth.people
        if people.any():
            group = {
                "name": name,
                "people": int(people.sum()),
                "ap": average_precision(of_size.precision()),
                "counts": count_kinds(matched.kinds[select_rows(people, matched.person)]),
                "missed": int((outcome.missed[0] & people).sum()),
            }
            groups.append(group)
    return groups


def write_diagnosis_file(
    diagnosis: Diagnosis, output_dir: str | Path, provenance: Mapping[str, str] | None = None
) -> Path:
    """Write ``diagnosis.json`` into a folder and return its path. ``provenance`` says where the results come from.

    Lists of ten numbers are in the order of ``oks_thresholds``.
    """
    background, missed = diagnosis.background_by_threshold, diagnosis.missed_by_threshold
    content: dict[str, Any] = {
        "name": diagnosis.name,
        "images": len(diagnosis.images),
        "people": diagnosis.num_people,
        "results": diagnosis.num_results,
        "AP": diagnosis.ap,
        "metrics": dict(diagnosis.metrics),
        "counts": diagnosis.counts,
        "keypoints": diagnosis.keypoints,
        "corrected": diagnosis.corrected,
        "alone": diagnosis.alone,
        MISSED_AT_50: {
            "corrected": average_precision(diagnosis.precision[MISSED_AT_50]),
            "alone": average_precision(diagnosis.alone_precision[MISSED_AT_50]),
        },
        "background": background[0],
        "missed": missed[0],
        "oks_thresholds": [round(threshold, 2) for threshold in OKS_THRESHOLDS],
        "AP_by_threshold": diagnosis.precision[UNCORRECTED].mean(axis=1).tolist(),
        "corrected_by_threshold": {kind: diagnosis.precision[kind].mean(axis=1).tolist() for kind in CORRECTIONS},
        "background_by_threshold": background,
        "missed_by_threshold": missed,
        "left_out": diagnosis.matched.results.num_left_out,
        "sizes": list(diagnosis.sizes),
    }
    if provenance:
        content["provenance"] = dict(provenance)
    path = Path(output_dir, DIAGNOSIS_FILE)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path
