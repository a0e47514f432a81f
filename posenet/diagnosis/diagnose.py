"""Diagnose a COCO results file: which errors it has, and what each kind of them costs.

After Ronchi and Perona, "Benchmarking and Error Diagnosis in Multi-Instance Pose Estimation" (ICCV 2017).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.split import Split, read_split
from posenet.diagnosis.average_precision import average_precision
from posenet.diagnosis.corrections import MatchedResults, measure_corrections, true_oks
from posenet.diagnosis.matching import Found, Truth
from posenet.diagnosis.outcome import Outcome
from posenet.diagnosis.result import (
    CORRECTIONS,
    KINDS,
    UNCORRECTED,
    Diagnosis,
    FoundPerson,
    ImageDiagnosis,
    TruePerson,
)
from posenet.diagnosis.results_file import ResultsFile, parse_results, read_results
from posenet.diagnosis.sensitivity import SIZES, Attributes, count_kinds, measure_sensitivity
from posenet.errors import DataError
from posenet.inference.evaluation import compute_coco_metrics
from posenet.progress import progress_bar
from posenet.skeleton import COCO, Skeleton


def diagnose(
    annotations: str | Path,
    results: str | Path | Sequence[Mapping[str, Any]],
    *,
    skeleton: Skeleton = COCO,
    image_ids: Collection[int] | None = None,
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
    last AP is 1.

    Args:
        annotations: COCO keypoint JSON.
        results: COCO results file, or its content; of any network.
        skeleton: the keypoints of both files, their left and right names and their OKS constants.
        image_ids: restricts the images of the annotation file.
        name: how the report calls the results; by default, the name of the file.
        progress: show a progress bar.

    Raises:
        DataError: a file cannot be used, or has other keypoints than the skeleton; the annotations contain no people.
    """
    split = read_split(annotations, image_ids, skeleton)
    require_people(split, annotations)
    if isinstance(results, (str, Path)):
        file = read_results(results, split, skeleton)
        return diagnose_results(file, split, skeleton, name or Path(results).name, progress=progress)
    file = parse_results(list(results), split, skeleton, name or "the results")
    return diagnose_results(file, split, skeleton, name or "results", progress=progress)


def require_people(split: Split, annotations: str | Path) -> None:
    """Raise a ``DataError`` unless at least one person of the split's images has a labelled keypoint."""
    listed = {image.id for image in split.images}
    for person in split.people:
        if person["num_keypoints"] and not person["iscrowd"] and person["image_id"] in listed:
            return
    raise DataError(
        f"{annotations} contains no people with labelled keypoints to compare the results with; "
        "give the person_keypoints_*.json of a validation set"
    )


def diagnose_results(
    file: ResultsFile, split: Split, skeleton: Skeleton, name: str, *, progress: bool = True
) -> Diagnosis:
    """Diagnose checked results for a split with labelled people; see ``diagnose``."""
    with progress_bar(title=f"diagnose {name}", total=5, unit="step", leave=False, disable=not progress) as bar:
        image_ids = np.array(sorted(image.id for image in split.images), np.int64)
        truth = Truth.from_annotations(split.people, image_ids, len(skeleton.file_keypoints))
        found = Found.from_arrays(np.searchsorted(image_ids, file.image_ids), file.keypoints, file.scores)
        matched = MatchedResults.build(found, truth, skeleton)
        bar.update()
        evaluation = compute_coco_metrics(file.to_coco(split.category), split, skeleton)
        bar.update()
        corrections = measure_corrections(matched)
        outcome = corrections.outcome
        bar.update()
        images_by_id = {image.id: image for image in split.images}
        sizes = [(images_by_id[number].width, images_by_id[number].height) for number in image_ids.tolist()]
        attributes = Attributes.of(truth, np.array(sizes))
        sensitivity = measure_sensitivity(matched, attributes, outcome)
        bar.update()
        images = _describe_images(matched, attributes, outcome, split, image_ids)
        bar.update()
    return Diagnosis(
        name=name,
        skeleton=skeleton,
        metrics=evaluation.metrics,
        ap_by_threshold=_by_threshold(corrections.corrected[UNCORRECTED]),
        counts=count_kinds(matched.kinds),
        keypoints={name: count_kinds(kinds) for name, kinds in zip(skeleton.file_names, matched.kinds.T)},
        corrected={kind: average_precision(corrections.corrected[kind]) for kind in CORRECTIONS},
        alone={kind: average_precision(corrections.alone[kind]) for kind in CORRECTIONS},
        corrected_by_threshold={kind: _by_threshold(corrections.corrected[kind]) for kind in CORRECTIONS},
        alone_by_threshold={kind: _by_threshold(corrections.alone[kind]) for kind in CORRECTIONS},
        precision=corrections.corrected,
        background_by_threshold=outcome.background.sum(axis=1),
        missed_by_threshold=outcome.missed.sum(axis=1),
        sensitivity=sensitivity,
        images=images,
        outcome=outcome,
    )


def _by_threshold(curves: np.ndarray) -> np.ndarray:
    """(10,) AP at each OKS threshold."""
    return np.asarray(curves.mean(axis=1))


def _describe_images(
    matched: MatchedResults, attributes: Attributes, outcome: Outcome, split: Split, image_ids: np.ndarray
) -> list[ImageDiagnosis]:
    """The images in the order of the annotation file, with their people and results."""
    found, truth = matched.found, matched.truth
    first_result = np.searchsorted(found.image, np.arange(len(image_ids) + 1)).tolist()
    first_annotation = np.searchsorted(truth.image, np.arange(len(image_ids) + 1)).tolist()
    # Index of each labelled person among those of the image, and of each result among those of the image.
    index_of_person = _indices_within(truth.image, ~truth.ignored)
    index_of_result = _indices_within(found.image, np.ones(len(found), bool))
    result_of_person = np.full(len(truth), -1)
    result_of_person[matched.person[matched.person >= 0]] = np.flatnonzero(matched.person >= 0)
    oks = _own_oks(matched)
    scores_by_oks = true_oks(found, truth, matched.pairs, matched.oks)
    names = np.array([*KINDS, None], object)  # the last one stands for UNLABELLED, which is -1
    nothing = tuple([None] * found.keypoints.shape[1])
    images = []
    for image in split.images:
        position = int(np.searchsorted(image_ids, image.id))
        annotations = range(first_annotation[position], first_annotation[position + 1])
        people = []
        for row in annotations:
            if truth.ignored[row]:
                continue
            result = result_of_person[row]
            people.append(
                TruePerson(
                    keypoints=truth.keypoints[row],
                    box=_box(truth, row),
                    area=float(truth.areas[row]),
                    size=SIZES[attributes.size[row]],
                    labelled=int(attributes.labelled[row]),
                    crowding=int(attributes.crowding[row]),
                    truncated=bool(attributes.truncated[row]),
                    hidden=float(attributes.hidden[row]),
                    result=int(index_of_result[result]) if result >= 0 else None,
                    oks=float(oks[result]) if result >= 0 else 0.0,
                    missed=bool(outcome.missed[0, row]),
                )
            )
        results = []
        for row in range(first_result[position], first_result[position + 1]):
            person = matched.person[row]
            results.append(
                FoundPerson(
                    keypoints=found.keypoints[row],
                    score=float(found.scores[row]),
                    person=int(index_of_person[person]) if person >= 0 else None,
                    oks=float(oks[row]),
                    true_oks=float(scores_by_oks[row]),
                    kinds=tuple(names[matched.kinds[row]]) if person >= 0 else nothing,
                    background=bool(outcome.counted[0, row] and not outcome.correct[0, row]),
                    ignored=not outcome.counted[0, row],
                )
            )
        images.append(
            ImageDiagnosis(
                id=image.id,
                file_name=image.file_name,
                width=image.width,
                height=image.height,
                people=people,
                results=results,
                ignored_boxes=[_box(truth, row) for row in annotations if truth.ignored[row]],
            )
        )
    return images


def _own_oks(matched: MatchedResults) -> np.ndarray:
    """(N,) OKS of every result with its person; without one, the highest OKS with any labelled person, or 0."""
    pairs, person = matched.pairs, matched.person
    is_own = pairs.truth == person[pairs.result]
    is_candidate = is_own | ((person[pairs.result] < 0) & ~matched.truth.ignored[pairs.truth])
    oks = np.zeros(len(matched.found))
    np.maximum.at(oks, pairs.result[is_candidate], matched.oks[is_candidate])
    return oks


def _indices_within(image: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """(rows,) number of chosen rows of the same image before each row; the images are sorted."""
    before = np.cumsum(chosen) - chosen
    return np.asarray(before - before[np.searchsorted(image, image)])


def _box(truth: Truth, row: int) -> tuple[float, float, float, float]:
    x, y, width, height = truth.boxes[row].tolist()
    return x, y, width, height
