"""Diagnose a COCO results file: which errors it has, and what each kind of them costs.

After Ronchi and Perona, "Benchmarking and Error Diagnosis in Multi-Instance Pose Estimation" (ICCV 2017).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.people import read_split
from posenet.diagnosis.keypoint_errors import CORRECTIONS, LOCALISATION, MatchedResults, count_kinds
from posenet.diagnosis.matching import MAX_RESULTS, OKS_THRESHOLDS, Outcome, Results, Truth, read_results, select_rows
from posenet.errors import DataError
from posenet.inference.evaluation import compute_coco_metrics
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton

MAX_NAMED = 5
"""Number of images that a sentence names."""
SIZES = ("small", "medium", "large")
"""Sizes of people as in the COCO evaluation: of areas below 32^2, up to 96^2, and above that, in square pixels."""


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
    stages: Mapping[str, np.ndarray]
    """(10,) AP at each OKS threshold: ``ap`` of the results as they are, then after correcting each kind of error and
    all before it. The difference of two stages is the AP that a kind of error costs."""
    alone: Mapping[str, float]
    """AP after correcting each kind of error and nothing else."""

    @property
    def ap(self) -> float:
        return float(self.stages["ap"].mean())

    @property
    def corrected(self) -> dict[str, float]:
        """AP after correcting each kind of error and all before it. The last is 1."""
        return {kind: float(self.stages[kind].mean()) for kind in CORRECTIONS}

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
    def sizes(self) -> list[dict[str, Any]]:
        """For each of ``SIZES`` of which there are people its ``name``, the number of ``people``, how many of them are
        ``missed`` at OKS 0.5, and the ``counts`` of keypoints of each kind in their results."""
        truth, groups = self.matched.truth, []
        for number, name in enumerate(SIZES):
            people = truth.people & (size_numbers(truth.areas) == number)
            if people.any():
                kinds = self.matched.kinds[select_rows(people, self.matched.person)]
                missed = int((self.outcome.missed[0] & people).sum())
                numbers = {"people": int(people.sum()), "missed": missed, "counts": count_kinds(kinds)}
                groups.append({"name": name} | numbers)
        return groups

    @property
    def background_by_threshold(self) -> list[int]:
        """Number of results that match nobody at each OKS threshold; the first is 0.5."""
        return list(map(int, self.outcome.background.sum(axis=1)))

    @property
    def missed_by_threshold(self) -> list[int]:
        """Number of labelled people whom no result matches at each OKS threshold; the first is 0.5."""
        return list(map(int, self.outcome.missed.sum(axis=1)))

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
        num_people = np.bincount(truth.image[truth.people])
        beyond = np.maximum(num_people - MAX_RESULTS, 0)
        text = f"COCO's evaluation uses the {MAX_RESULTS} best results of an image: {num_left_out} left out"
        if crowded := np.flatnonzero(beyond).tolist():
            names = ", ".join(self.images[index].file_name for index in crowded[:MAX_NAMED])
            more = f" and {len(crowded) - MAX_NAMED} more" if len(crowded) > MAX_NAMED else ""
            text += f"; {self.matched.skeleton.count(int(beyond.sum()), 'missed')} whatever the results are"
            text += f", in {names}{more}"
        return text if crowded or num_left_out else ""

    def to_dict(self) -> dict[str, Any]:
        """All numbers in types of JSON. Lists of ten numbers are in the order of ``oks_thresholds``."""
        return {
            "name": self.name,
            "images": len(self.images),
            "people": self.num_people,
            "results": self.num_results,
            "left_out": self.matched.results.num_left_out,
            "AP": self.ap,
            "metrics": dict(self.metrics),
            "counts": self.counts,
            "keypoints": self.keypoints,
            "sizes": self.sizes,
            "corrected": self.corrected,
            "alone": dict(self.alone),
            "oks_thresholds": [round(threshold, 2) for threshold in OKS_THRESHOLDS],
            "AP_by_threshold": {kind: ap.tolist() for kind, ap in self.stages.items()},
            "background_by_threshold": self.background_by_threshold,
            "missed_by_threshold": self.missed_by_threshold,
        }


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
    *background*: a result matches nobody. *missed*: no result matches a person at OKS 0.5. *inexact*: one does, but not
    at a higher threshold.

    The AP is computed again after correcting each kind of error, in the order of ``CORRECTIONS`` and alone. Corrected
    keypoints are nearer to the true ones, see ``MatchedResults.correct``; corrected scores are the OKS of each result
    with its person. Background results and people who are missed or found inexactly are removed, at each OKS threshold
    separately. The last AP is 1.

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
        try:
            from posenet.annotations.skeleton_draft import skeleton_of
        except ModuleNotFoundError:  # a part of the package that may be left out
            pass
        else:
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
    entries = read_results(results, index_of, split.categories, num_keypoints)
    matched = MatchedResults.of(Results.of(entries, index_of, num_keypoints), truth, skeleton)
    outcome = matched.evaluate()
    stages, alone = _correct(matched, outcome, title=f"diagnose {name}", progress=progress)
    of_split = [entry | {"category_id": split.category} for entry in map(dict, entries)]
    metrics = compute_coco_metrics(of_split, split, skeleton).metrics
    return Diagnosis(name, images, matched, outcome, metrics, stages, alone)


def _correct(
    matched: MatchedResults, outcome: Outcome, *, title: str, progress: bool
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """``Diagnosis.stages`` and ``Diagnosis.alone``."""
    stages = {"ap": outcome.precision()}
    alone = {}
    ranked = outcome
    kinds = (*LOCALISATION, "score")
    for number, kind in enumerate(progress_bar(kinds, title, unit="kind", leave=False, disable=not progress), 1):
        ranked = matched.correct(CORRECTIONS[:number]).evaluate()
        stages[kind] = ranked.precision()
        alone[kind] = matched.correct([kind]).evaluate().precision()
    found = replace(ranked, counted=ranked.correct)  # without the background
    stages["background"] = found.precision()
    stages["missed"] = found.precision(found.missed[0])
    stages["inexact"] = found.precision(found.missed)
    alone["background"] = replace(outcome, counted=outcome.correct).precision()
    alone["missed"] = outcome.precision(outcome.missed[0])
    alone["inexact"] = outcome.precision(~outcome.missed[0])
    return stages, {kind: float(precision.mean()) for kind, precision in alone.items()}


def size_numbers(areas: np.ndarray) -> np.ndarray:
    """The index into ``SIZES`` of each area."""
    return np.asarray((areas >= 32**2).astype(int) + (areas > 96**2))
