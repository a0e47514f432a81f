"""The EXIF frame of annotations: those of the stored pixels are turned to the image as displayed, as it is read."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.category_reader import canonical_id
from posenet.annotations.coco import AnnotationColumns
from posenet.annotations.coordinates import EDGE_MARGIN, FAR_OUTSIDE
from posenet.annotations.image_reader import Images
from posenet.annotations.outlines import Outline, decode_mask, encode_mask
from posenet.images import ImageHeader, apply_orientation, has_proportions, read_oriented_header
from posenet.settings import ExifFrame
from posenet.threads import map_in_threads, usable_cores

MIRRORING = (2, 4, 5, 7)
"""Orientations that mirror: what is annotated as left in the stored pixels is right in the displayed image."""
QUARTER_TURNS = (5, 6, 7, 8)
"""Orientations that swap height and width."""


def find_frames(images: Images, annotated: Collection[object], exif_frame: ExifFrame, said: Adjustments) -> None:
    """Find the images whose annotations are those of the stored pixels: by what they are to be turned.

    Args:
        annotated: ids of the images with annotations, as ``canonical_id`` gives them.
    """
    by_setting, is_mirrored = np.zeros((2, len(images.names)), bool)
    rows = [] if images.folder is None else np.flatnonzero(images.is_kept).tolist()
    workers = usable_cores()
    headers = map_in_threads(
        lambda row: images.header(row, read_oriented_header), rows, workers=workers, ahead=64 * workers
    )
    for row, header in zip(rows, headers):
        entry = images.entries[row]
        if header is None or header.orientation == 1 or entry.get("exif_frame") == "displayed":  # as in the normal form
            continue
        height, width = images.sizes[row].tolist()
        frame, is_open = _frame_of(header, (height, width), exif_frame)
        is_annotated = canonical_id(entry.get("id")) in annotated
        by_setting[row] = is_open and is_annotated
        is_mirrored[row] = frame == "stored" and is_annotated and header.orientation in MIRRORING
        if frame == "stored" and not is_mirrored[row]:
            images.turns[row] = header.orientation
        # What only the setting decides, and leaves as it is, may be decided otherwise later.
        if not is_open or frame == "stored":
            images.entries[row] = entry | {"exif_frame": "displayed"}
    said.add_rows("warning", "exif-by-setting", by_setting, images.names)
    images.leave_out("exif-mirrored", is_mirrored, images.names, said)


def _frame_of(header: ImageHeader, size: tuple[int, int], exif_frame: ExifFrame) -> tuple[ExifFrame, bool]:
    """The frame of an image that is annotated as (height, width) ``size``, and whether ``exif_frame`` decides it.

    Quarter turns swap height and width, and then the size tells, or the proportions of an image that was resized. For
    others, for square images and for proportions of neither frame, ``exif_frame`` decides.
    """
    stored, displayed = header.stored_size, header.displayed_size
    is_stored, is_displayed = size == stored, size == displayed
    if not is_stored and not is_displayed:
        is_stored, is_displayed = has_proportions(stored, size), has_proportions(displayed, size)
    if is_stored == is_displayed:
        return exif_frame, True
    return ("stored" if is_stored else "displayed"), False


def swap_sizes(images: Images, columns: AnnotationColumns, said: Adjustments) -> None:
    """Swap height and width of the images whose keypoints fit only the displayed image, though the size is that of
    the stored pixels: keypoints in it, and some far outside the stored pixels."""
    is_turned = np.isin(images.turns, QUARTER_TURNS)
    rows = np.flatnonzero(is_turned[columns.image_rows])
    image_rows, is_labelled = columns.image_rows[rows], columns.is_labelled[rows]
    points = columns.keypoints[rows, :, :2]
    sizes = images.sizes[image_rows][:, None, ::-1]
    is_far = is_labelled & (points > sizes + FAR_OUTSIDE * sizes.max(axis=2, keepdims=True)).any(axis=2)
    fits_turned = ((points >= -EDGE_MARGIN) & (points <= sizes[..., ::-1] + EDGE_MARGIN)).all(axis=2)
    has_far, has_misfit = np.zeros((2, len(images.names)), bool)
    has_far[image_rows[is_far.any(axis=1)]] = True
    has_misfit[image_rows[(is_labelled & ~fits_turned).any(axis=1)]] = True
    is_swapped = is_turned & has_far & ~has_misfit
    images.sizes[is_swapped] = images.sizes[is_swapped][:, ::-1]
    images.turns[is_swapped] = 1
    said.add_rows("derived", "exif-swapped", is_swapped, images.names)


def turn_upright(images: Images, columns: AnnotationColumns, said: Adjustments) -> AnnotationColumns:
    """Turn the annotations of the stored pixels. Those of categories that are not read are left out there."""
    is_turned = (images.turns != 1) & images.is_kept
    by_image = np.argsort(columns.image_rows, kind="stable")
    starts = np.searchsorted(columns.image_rows[by_image], np.arange(len(images.names) + 1))
    for row in np.flatnonzero(is_turned).tolist():
        orientation = int(images.turns[row])
        height, width = images.sizes[row].tolist()
        rows = by_image[starts[row] : starts[row + 1]]
        if len(rows):
            _turn_annotations(columns, rows, orientation, (height, width))
        images.sizes[row] = (width, height) if orientation in QUARTER_TURNS else (height, width)
    has_people = np.isin(np.arange(len(images.names)), columns.image_rows)
    said.add_rows("derived", "exif-turned", is_turned & has_people, images.names)
    is_unread = is_turned[columns.image_rows] & ~columns.is_used
    said.add_rows("left out", "exif-other", is_unread, columns.ids)
    return columns.select(~is_unread)


def _turn_annotations(columns: AnnotationColumns, rows: np.ndarray, orientation: int, size: tuple[int, int]) -> None:
    """Turn some rows, in place, from the stored pixels of (height, width) ``size`` by the orientation 3, 6 or 8."""
    keypoints, boxes = columns.keypoints[rows], columns.boxes[rows]  # copies
    # Keypoints count from the centre of the first pixel, boxes and outlines from its corner.
    points = _turn(keypoints[..., :2] + 0.5, orientation, size) - 0.5
    keypoints[..., :2] = np.where(keypoints[..., 2:] > 0, points, keypoints[..., :2])
    corners = [_turn(corner, orientation, size) for corner in (boxes[:, :2], boxes[:, :2] + boxes[:, 2:])]
    columns.keypoints[rows] = keypoints
    columns.boxes[rows] = np.hstack([np.minimum(*corners), np.abs(corners[1] - corners[0])])
    for row in rows.tolist():
        outline = _turn_outline(columns.outlines[row], orientation, size)
        columns.outlines[row] = outline
        if isinstance(outline, np.ndarray):  # which is written as it is in the entry
            turned_size = [*size[::-1]] if orientation in QUARTER_TURNS else [*size]
            rle = {"size": turned_size, "counts": outline.tolist()}
            columns.entries[row] = columns.entries[row] | {"segmentation": rle}


def _turn(points: np.ndarray, orientation: int, size: tuple[int, int]) -> np.ndarray:
    """(..., 2) x, y in pixels from the corner of the image."""
    height, width = size
    x, y = points[..., 0], points[..., 1]
    turned = {3: (width - x, height - y), 6: (height - y, x), 8: (y, width - x)}[orientation]
    return np.stack(turned, axis=-1)


def _turn_outline(outline: Outline, orientation: int, size: tuple[int, int]) -> Outline:
    if isinstance(outline, np.ndarray):
        return encode_mask(apply_orientation(decode_mask(outline, *size), orientation))
    if outline is None:
        return None
    return [_turn(np.reshape(polygon, (-1, 2)), orientation, size).ravel().tolist() for polygon in outline]
