"""Builds a store from a folder of images, with a COCO keypoint file or without annotations."""

from __future__ import annotations

import math
import os
import zlib
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import CocoImage
from posenet.annotations.main_persons import (
    CLEAR_AREA,
    MIN_AREA,
    count_others,
    describe_others,
    person_masks,
    select_main_persons,
)
from posenet.annotations.outlines import encode_mask
from posenet.annotations.people import CocoDataset, People, read_dataset, scale_people
from posenet.data.store import NO_PERSON, PERSON_TYPE, OriginalRow, Record, Store
from posenet.data.store_writer import JPEG_QUALITY, check_store_output, open_store_writer
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import resolve_link
from posenet.images import (
    check_image,
    check_proportions,
    decode_checked_image,
    find_images,
    read_image_file,
    require_image_folder,
)
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.threads import map_in_threads

MAX_ID_DIGITS = 18
"""Most digits of a file name that is an image id: all such numbers have 64 bits."""
MAX_UNREADABLE = 0.05
"""Default share of unreadable images above which a build fails."""


@dataclass(frozen=True)
class BuildReport:
    """The result of a build."""

    store: Store  # closed; its tables remain
    num_without_main_person: int  # requested images without a main person
    others: Counter[str]  # people of the requested images on whom no sample is centred, by reason
    adjustments: Adjustments  # what reading the annotations did
    skipped: tuple[str, ...]  # one line for every unreadable image
    num_resized: int  # stored images of another size than annotated, to which their annotations are scaled
    num_empty: int  # requested images without any annotation that are not stored
    num_shrunk: int  # stored images that were made smaller


class _ImageFile(NamedTuple):
    """An image as it will be stored. Sizes are (height, width) of the displayed image."""

    data: np.ndarray  # (bytes,) uint8
    size: tuple[int, int]
    orientation: int
    original: OriginalRow  # of the file
    original_size: tuple[int, int]


def build_store(
    images: str | Path,
    annotations: str | Path | CocoDataset | None,
    output: str | Path,
    *,
    image_ids: Collection[int] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    max_unreadable: float = MAX_UNREADABLE,
    overwrite: bool = False,
    skeleton: Skeleton | str | Path = COCO,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    max_side: int = 0,
    background: bool = False,
    progress: bool = True,
) -> BuildReport:
    """Write every image that has a main person to ``output``, in the order of the annotation file.

    Args:
        images: folder of the images. Where they were resized after they were annotated, the annotations are scaled to
            the size of the files.
        annotations: COCO keypoint JSON for ``skeleton``, or people as ``people_of`` returns them, with their own
            skeleton. None stores all images of the folder without annotations, in the order of their names and as
            viewers display them: as ``background``, or for training with a teacher.
        image_ids, limit: store only these images, and only the first ``limit`` of them; None stores all.
        workers: threads; None means one per usable core. The bytes of the store do not depend on it.
        max_unreadable: share of the images, rounded up to whole images, that may be missing, damaged or of other
            proportions than annotated. They are skipped and reported.
        overwrite: replace an existing store when the new one is complete.
        skeleton: that of the annotation file, or the path of its own file.
        exif_frame: see ``read_annotation_file``; images without annotations are stored as displayed.
        max_side: images with a longer side than this many pixels are stored smaller and upright, with their
            annotations: as JPEG of the quality ``JPEG_QUALITY``. They stay so large that no main person gets
            smaller than one may be. 0 stores all images as they are.
        background: also store the images without any annotation, as images that show nobody.

    Raises:
        DataError: the input or the output cannot be used, or too many images are unreadable. No store is written.
    """
    skeleton = load_skeleton(skeleton)
    if max_side < 0:
        raise DataError(f"max_side is {max_side}; give the longest side in pixels, or 0 to keep all sizes")
    output, folder = Path(output), Path(images)
    # Before the annotations are read.
    check_store_output(resolve_link(output), overwrite, [annotations] if isinstance(annotations, (str, Path)) else [])
    require_image_folder(folder)
    if annotations is None:
        dataset = _list_unlabelled(folder, background, skeleton)
    elif isinstance(annotations, CocoDataset):
        dataset = annotations
    else:
        dataset = read_dataset(annotations, skeleton, folder, exif_frame)
    skeleton = dataset.skeleton
    minimum = skeleton.min_labelled_keypoints
    requested = _find_requested(dataset, image_ids)
    empty = dataset.background & {image.id for image in requested}
    suitable = [image for image in requested if _is_suitable(image, dataset, minimum, background)]
    people_of_requested = [dataset.people[image.id] for image in requested if image.id in dataset.people]
    others = sum((count_others(people, minimum) for people in people_of_requested), start=Counter[str]())
    if len(requested) > len(empty) and all(image.id in empty for image in suitable):
        raise DataError(
            f"no {skeleton.category} in {dataset.path} has {minimum} labelled keypoints and an area of {MIN_AREA} "
            f"square pixels, as a sample needs: {describe_others(others) or 'there is none'}; posenet annotations lint "
            "checks it"
        )
    chosen = suitable[:limit]
    if not chosen and empty:
        raise DataError(f"{dataset.path} has only images without annotations; --background stores them")

    def prepare(image: CocoImage) -> tuple[Record, list[int], _ImageFile] | str:
        """The record and the rows of its main persons, or the reason why the image cannot be used."""
        path = folder / image.file_name
        people = dataset.people.get(image.id)
        size = image.height, image.width
        try:
            file = _read_image(path, None if people is None else size)
            mains: list[int] = []
            if people is not None:
                people = scale_people(people, size, file.size)
                mains = select_main_persons(people, minimum)
            smaller = _shrink(file, max_side, people.areas[mains] if people else np.zeros(0))
            if people is not None:
                people = scale_people(people, file.size, smaller.size)
            return *_make_record(path, image, smaller, people, mains, skeleton, background), smaller
        except DataError as error:
            return f"{error} (image {image.id})"
        except (OSError, ValueError) as error:
            return f"{path} (image {image.id}): {getattr(error, 'strerror', None) or error}"

    counts: Counter[str] = Counter()
    skipped: list[str] = []
    paths = [folder / image.file_name for image in chosen]
    num_bytes = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    max_skipped = math.ceil(max_unreadable * len(chosen))
    workers = workers or usable_cores()  # threads, because reading and decoding release Python's global lock
    with (
        open_store_writer(output, num_bytes, skeleton, dataset.path, overwrite, max_side) as writer,
        closing(map_in_threads(prepare, chosen, workers=workers, ahead=4 * workers)) as results,
    ):
        for image, result in zip(chosen, progress_bar(results, "build", len(chosen), disable=not progress)):
            if isinstance(result, str):
                skipped.append(result)
                if len(skipped) > max_skipped:
                    raise DataError(
                        f"more than {max_skipped} of {len(chosen)} images cannot be read, the most that max_unreadable "
                        "allows; check the folder of the images, restore the files, or raise it (posenet annotations "
                        f"lint lists all problems): {'; '.join(skipped[:3])}"
                    )
                continue
            record, main_rows, file = result
            if not main_rows and image.id not in empty:
                counts["too small"] += 1  # its main persons, in a file that is smaller than annotated
                continue
            writer.add(record, main_rows, file.original)
            counts["shrunk"] += file.size != file.original_size
            counts["resized"] += bool(image.height) and file.original_size != (image.height, image.width)
    with Store(output, skeleton) as store:
        pass
    return BuildReport(
        store=store,
        num_without_main_person=len(requested) - len(suitable) + counts["too small"],
        others=others,
        adjustments=dataset.adjustments,
        skipped=tuple(skipped),
        num_resized=counts["resized"],
        num_empty=0 if background else len(empty),
        num_shrunk=counts["shrunk"],
    )


def _list_unlabelled(folder: Path, background: bool, skeleton: Skeleton) -> CocoDataset:
    """The images of a folder, of people who are not known. Their sizes are not known yet: 0.

    An image id is the number that is the name of the file, as in COCO, if all names are numbers; else the images are
    numbered from 1 in the order of their names.
    """
    names = [path.relative_to(folder) for path in find_images([folder])]
    stems = [name.stem for name in names]
    ids = [int(stem) for stem in stems if stem.isascii() and stem.isdecimal() and len(stem) <= MAX_ID_DIGITS]
    if len(set(ids)) < len(names):
        ids = list(range(1, len(names) + 1))
    images = [CocoImage(number, str(name), height=0, width=0) for number, name in zip(ids, names)]
    return CocoDataset(folder, skeleton, images, {}, frozenset(ids if background else ()), Adjustments())


def _find_requested(dataset: CocoDataset, ids: Collection[int] | None) -> list[CocoImage]:
    """The images with these ids, or all, in their order; ``DataError`` if one of them is missing."""
    if ids is None:
        return dataset.images
    wanted = set(ids)
    unknown = wanted - {image.id for image in dataset.images}
    if unknown:
        raise DataError(f"{dataset.path} has no image {min(unknown)} ({len(unknown)} unknown in all); correct the ids")
    return [image for image in dataset.images if image.id in wanted]


def _is_suitable(image: CocoImage, dataset: CocoDataset, min_labelled: int, background: bool) -> bool:
    """Whether an image has a main person, or shows nobody and is wanted all the same, or who is in it is not known."""
    if image.id not in dataset.people or (background and image.id in dataset.background):
        return True
    return bool(select_main_persons(dataset.people[image.id], min_labelled))


def _read_image(path: Path, annotated_size: tuple[int, int] | None) -> _ImageFile:
    """Read and check an image file; ``OSError`` or ``ValueError`` if it cannot be used."""
    data = read_image_file(path)
    header = check_image(data)
    size = header.displayed_size
    if annotated_size is not None:
        check_proportions(path, size, annotated_size)
    return _ImageFile(
        data, size, header.orientation, OriginalRow(len(data), zlib.crc32(data.data), header.orientation), size
    )


def _shrink(file: _ImageFile, max_side: int, areas: np.ndarray) -> _ImageFile:
    """Make an image smaller if a side is longer than ``max_side`` pixels and that is not 0, but not so small that one
    of the ``areas`` of its main persons gets too small for one."""
    longer = max(file.size)
    if not 0 < max_side < longer:
        return file
    # Who is clear stays so, and who is small can still be trained on.
    smallest = np.where(areas >= CLEAR_AREA, CLEAR_AREA, MIN_AREA)
    zoom = max([max_side / longer, *np.sqrt(smallest / areas).tolist()])
    if zoom >= 1:
        return file
    height, width = (max(1, round(side * zoom)) for side in file.size)
    pixels = decode_checked_image(file.data, *file.size, 1, file.orientation)
    pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
    return file._replace(data=data, size=(height, width), orientation=1)


def _make_record(
    path: Path,
    image: CocoImage,
    file: _ImageFile,
    people: People | None,
    mains: list[int],
    skeleton: Skeleton,
    background: bool,
) -> tuple[Record, list[int]]:
    """The record of an image with its labelled people, and the rows of its main persons.

    The people, with the rows ``mains``, are in pixels of the file. Without annotations (None), it shows nobody if it is
    ``background``; else the loss of labels counts nowhere.
    """
    if people is None:
        joints = np.zeros((0, skeleton.num_keypoints, 3), np.float32)
        table = np.zeros(0, PERSON_TYPE)
        person_mask = np.zeros(file.size, np.uint8)
        mask_miss = np.full(file.size, background, np.uint8)
        main_rows = [] if background else [NO_PERSON]
    else:
        rows = np.flatnonzero(people.is_labelled)
        joints = people.keypoints[rows]
        table = np.zeros(len(rows), PERSON_TYPE)
        table["annotation_id"] = people.ids[rows]
        table["box"] = people.boxes[rows]
        table["area"] = people.areas[rows]
        person_mask, mask_miss = person_masks(people, *file.size)
        main_rows = np.searchsorted(rows, mains).tolist()  # main persons are labelled, so each is one of ``rows``
    record = Record(
        source=path,
        image_id=image.id,
        file_name=image.file_name,
        height=file.size[0],
        width=file.size[1],
        orientation=file.orientation,
        image_bytes=file.data,
        joints=joints,
        person_mask=encode_mask(person_mask),
        mask_miss=encode_mask(mask_miss),
        people=table,
    )
    return record, main_rows
