"""Images of training samples as the network sees them, with what it is to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from posenet.data.batch import Batch
from posenet.data.dataset import PoseDataset
from posenet.data.sampler import TrainSampler
from posenet.data.targets import TargetRenderer
from posenet.images.image_files import write_image
from posenet.inference.person import Person
from posenet.visualization.people import MIDDLE, OUTLINE, draw_people

BAR = 34
"""Height of a panel's title in pixels."""
GAP = 6
PAPER, INK, SOFT = (250, 250, 250), (30, 30, 30), (120, 120, 120)
IGNORED, PEOPLE = (60, 60, 230), (200, 160, 40)
"""BGR of what is not supervised and of the person mask."""


def write_previews(dataset: PoseDataset, renderer: TargetRenderer, folder: Path, count: int) -> list[Path]:
    """Write the first ``count`` samples of training, one sheet each; earlier previews are replaced.

    Raises:
        DataError: a sample that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (epoch, index) in enumerate(_first(dataset, count), 1):
        record = dataset.frame_record((epoch, index)).record
        title = f"{record.file_name}, sample {index}, epoch {epoch}"
        paths.append(folder / f"sample_{number:03d}.jpg")
        write_image(paths[-1], sheet(dataset.__getitems__([(epoch, index)]), renderer, title))
    return paths


def sheet(batch: Batch, renderer: TargetRenderer, title: str) -> np.ndarray:
    """The first sample of a batch as four panels: input and keypoints, masks, keypoint maps, body-part maps.

    Returns:
        (h, w, 3) uint8 BGR.
    """
    image, joints = batch.images[0].numpy(), batch.joints[0].numpy()
    maps = renderer(batch.joints[:1], batch.person_mask[:1].float() / 255)[0].numpy()
    first_keypoint = renderer.skeleton.num_parts
    parts = maps[:first_keypoint].max(0)
    keypoints = maps[first_keypoint : first_keypoint + renderer.skeleton.num_keypoints].max(0)
    panels = [
        _titled("Input, with all labelled keypoints", "hidden ones dark", _with_people(image, joints, renderer)),
        _titled(
            "Masks",
            "blue: people; red: not supervised",
            _with_masks(image, batch.person_mask[0].numpy(), batch.mask_miss[0].numpy()),
        ),
        _titled(f"Keypoint maps, strongest of {renderer.skeleton.num_keypoints}", "", _with_map(image, keypoints)),
        _titled(f"Body-part maps, strongest of {renderer.skeleton.num_parts}", "", _with_map(image, parts)),
    ]
    upright = np.full((panels[0].shape[0], GAP, 3), PAPER, np.uint8)
    rows = [np.concatenate([left, upright, right], axis=1) for left, right in (panels[:2], panels[2:])]
    flat = np.full((GAP, rows[0].shape[1], 3), PAPER, np.uint8)
    return np.concatenate([_bar(title, "", rows[0].shape[1]), rows[0], flat, rows[1]])


def _first(dataset: PoseDataset, count: int) -> Iterator[tuple[int, int]]:
    """The keys of training's first samples, at most one epoch of them."""
    sampler = TrainSampler(len(dataset), 1, dataset.seed)
    return (key for _, (key,) in zip(range(count), sampler))


def _with_people(image: np.ndarray, joints: np.ndarray, renderer: TargetRenderer) -> np.ndarray:
    labelled = joints[..., 2] > 0
    people = [
        Person(np.column_stack([person[:, :2], known]).astype(np.float32), 1.0, renderer.skeleton)
        for person, known in zip(joints, labelled)
        if known.any()
    ]
    canvas = draw_people(image, people)
    for x, y in np.rint(joints[joints[..., 2] == 1][:, :2]).astype(int).tolist():
        cv2.circle(canvas, (x, y), 4, OUTLINE, -1, cv2.LINE_AA)
        cv2.circle(canvas, (x, y), 4, MIDDLE, 1, cv2.LINE_AA)
    return canvas


def _with_masks(image: np.ndarray, person_mask: np.ndarray, mask_miss: np.ndarray) -> np.ndarray:
    canvas = image.astype(np.float32)
    for mask, colour in ((person_mask, PEOPLE), (255 - mask_miss, IGNORED)):
        canvas = _blend(canvas, np.array(colour, np.float32), 0.5 * _enlarged(mask / 255.0, image))
    return canvas.astype(np.uint8)


def _with_map(image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A map from 0 to 1 in colours over the greyed and darkened image."""
    values = _enlarged(values, image)
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR) * 0.6
    colours = cv2.applyColorMap(np.rint(values * 255).astype(np.uint8), cv2.COLORMAP_TURBO)
    return _blend(grey, colours, np.minimum(1.5 * values, 0.9)).astype(np.uint8)


def _enlarged(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    """(H, W) float32: cells at the image's pixels; resizing keeps centres where they are."""
    return cv2.resize(values.astype(np.float32), image.shape[1::-1], interpolation=cv2.INTER_LINEAR)


def _blend(below: np.ndarray, above: np.ndarray, share: np.ndarray) -> np.ndarray:
    return below * (1 - share[..., None]) + above * share[..., None]


def _titled(title: str, remark: str, panel: np.ndarray) -> np.ndarray:
    return np.concatenate([_bar(title, remark, panel.shape[1]), panel])


def _bar(title: str, remark: str, width: int) -> np.ndarray:
    """A line of text above an image, as small as its width asks for."""
    bar = np.full((BAR, width, 3), PAPER, np.uint8)
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, 0.55
    needed = cv2.getTextSize(title + "   " + remark, font, scale, 1)[0][0]
    scale *= min(1, (width - 16) / needed)
    cv2.putText(bar, title, (8, BAR - 11), font, scale, INK, 1, cv2.LINE_AA)
    start = 8 + cv2.getTextSize(title + "   ", font, scale, 1)[0][0]
    cv2.putText(bar, remark, (start, BAR - 11), font, scale, SOFT, 1, cv2.LINE_AA)
    return bar
