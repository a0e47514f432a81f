"""Where the decoder stands between the network and the AP: the AP if its candidates were grouped perfectly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posenet.annotations.reading import Split, read_annotations
from posenet.inference.backends.backend import NetworkOutput
from posenet.inference.coco_evaluation import SplitOptions, compute_coco_metrics, predict_people, to_coco_result
from posenet.inference.decoder.candidates import KeypointCandidates
from posenet.inference.perfect_grouping import group_by_truth
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.settings import MAP_STRIDE, DataConfig, ExifFrame


class CandidatePredictor(Predictor):
    """Returns every keypoint candidate of an image as a person with one keypoint."""

    @classmethod
    def like(cls, predictor: Predictor) -> CandidatePredictor:
        """With the network and the settings of another predictor."""
        return cls(predictor.backend)

    def decode_output(self, output: NetworkOutput) -> list[list[Person]]:
        """The candidates of each image, in pixels of the image."""
        people_of_images = []
        for image_size, letterbox, decoder_input in zip(output.image_sizes, output.letterboxes, output.fetch()):
            found = decoder_input.candidates(self.settings, self.skeleton)
            people_of_images.append(letterbox.map_back(self._single_keypoints(found), image_size))
        return people_of_images

    def _single_keypoints(self, found: KeypointCandidates) -> list[Person]:
        """One person for each candidate, in pixels of the network input."""
        xy = found.xy * MAP_STRIDE + (MAP_STRIDE - 1) / 2  # pixels of the network input
        people = []
        for keypoint, position, score in zip(found.keypoint, xy, found.score):
            keypoints = np.zeros((self.skeleton.num_keypoints, 3), np.float32)
            keypoints[keypoint] = (*position, score)
            people.append(Person(keypoints, float(score), self.skeleton))
        return people


def evaluate_perfect_grouping(
    predictor: Predictor,
    images_dir: str | Path,
    annotations: str | Path,
    split: Split,
    *,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    progress: bool = True,
) -> dict[str, float]:
    """Compute COCO's metrics of the people that a network's candidates form if the annotations group them.

    The same network and candidates with a better decoder cannot reach more; the rest is up to training.

    Raises:
        DataError: the annotation file cannot be used, or an image is missing or cannot be read.
    """
    skeleton = predictor.skeleton
    truth = read_annotations(annotations, skeleton).people
    options = SplitOptions(exif_frame=exif_frame, skeleton=skeleton, progress=progress)
    candidates_by_image = predict_people(CandidatePredictor.like(predictor).stream, images_dir, split.images, options)
    results = []
    for image in split.images:
        candidates = np.array([person.keypoints for person in candidates_by_image[image.id]], np.float32)
        candidates = candidates.reshape(-1, skeleton.num_keypoints, 3)
        row, keypoint = np.nonzero(candidates[..., 2] > 0)
        found = candidates[row, keypoint]
        people = group_by_truth(truth[image.id], keypoint, found[:, :2], found[:, 2], skeleton)
        results += [to_coco_result(person, image.id, split.category, fill_missing=True) for person in people]
    return compute_coco_metrics(results, split, skeleton).metrics
