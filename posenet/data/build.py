"""Build a store: from annotations and images to the records in the file."""

import contextlib
import math
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from posenet.annotations.adjustments import Adjustments
from posenet.annotations.coco import CocoImage
from posenet.annotations.outlines import encode_mask
from posenet.annotations.people import (
    CLEAR_AREA,
    MIN_AREA,
    CocoDataset,
    count_others,
    describe_others,
    person_masks,
    read_dataset,
    scale_people,
    select_main_persons,
)
from posenet.annotations.reader import canonical_id
from posenet.data.store import (
    JPEG_QUALITY,
    NO_PERSON,
    PERSON_TYPE,
    NewImage,
    Record,
    Store,
    check_store_output,
    write_store,
)
from posenet.errors import DataError
from posenet.files import resolve_link
from posenet.images import (
    check_image,
    check_proportions,
    decode_checked_image,
    find_images,
    image_errors,
    read_image_file,
    require_image_folder,
)
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.threads import map_in_threads, usable_cores

MAX_UNREADABLE = 0.05
"""Default share of unreadable images above which a build fails."""


@dataclass(frozen=True)
class BuildReport:
    """The result of a build."""

    store: Store  # closed; its tables remain
    adjustments: Adjustments  # what reading the annotations did
    without_sample: Counter[str]  # requested images that are not stored, by reason
    others: Counter[str]  # people of the requested images on whom no sample is centred, by reason
    skipped: tuple[str, ...]  # one line for every unreadable image
    changed: Counter[str]  # stored images that differ from their files or annotations, by what was done

    def missing_lines(self) -> list[str]:
        """What the store lacks, one line each."""
        lines = [f"left out: {pluralize(count, 'image')} {reason}" for reason, count in self.without_sample.items()]
        if self.others:
            objects = self.store.skeleton.count(self.others.total())
            lines.append(f"{objects} without a sample of their own: {describe_others(self.others)}")
        return lines + [f"left out: {line}" for line in self.skipped]


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
        ConfigError: the skeleton file or ``exif_frame`` cannot be used.
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
    requested = dataset.images
    if image_ids is not None:
        wanted = set(image_ids)
        if unknown := wanted - {image.id for image in requested}:
            raise DataError(f"{dataset.path} has no image {min(unknown)} ({len(unknown)} unknown); correct the ids")
        requested = [image for image in requested if image.id in wanted]
    people_of_requested = [dataset.people[image.id] for image in requested if image.id in dataset.people]
    others = sum((count_others(people, minimum) for people in people_of_requested), start=Counter[str]())
    empty = dataset.background & {image.id for image in requested}
    suitable = [
        image
        for image in requested
        if image.id not in dataset.people  # who is in it is not known
        or (background and image.id in empty)
        or select_main_persons(dataset.people[image.id], minimum)
    ]
    shows_nobody = background and len(empty) == len(requested)
    if not shows_nobody and all(image.id in empty for image in suitable):
        raise DataError(
            f"no {skeleton.category} in {dataset.path} has {minimum} labelled keypoints and an area of {MIN_AREA} "
            f"square pixels, as a sample needs: {describe_others(others) or 'there is none'}; posenet annotations lint "
            "checks it, and --background stores images without annotations"
        )
    chosen = suitable[:limit]
    num_empty = 0 if background else len(empty)
    without_sample = Counter({"without any annotation (--background stores them)": num_empty})
    no_main = f"without a main {skeleton.category}"
    without_sample[no_main] = len(requested) - len(suitable) - num_empty
    changed: Counter[str] = Counter()
    skipped: list[str] = []
    max_skipped = math.ceil(max_unreadable * len(chosen))

    def read(image: CocoImage) -> tuple[NewImage, list[str]] | str:
        """An image and what was changed, or the reason why it cannot be used."""
        path = folder / image.file_name
        try:
            with image_errors(path):
                return _read_image(path, image, dataset, max_side)
        except DataError as error:
            return f"{error} (image {image.id})"

    def usable_images() -> Iterator[NewImage]:
        count = workers or usable_cores()  # threads, because reading and decoding release Python's global lock
        with contextlib.closing(map_in_threads(read, chosen, workers=count, ahead=4 * count)) as results:
            for image, result in zip(chosen, progress_bar(results, "build", len(chosen), disable=not progress)):
                if isinstance(result, str):
                    skipped.append(result)
                    if len(skipped) > max_skipped:
                        raise DataError(
                            f"more than {max_skipped} of {len(chosen)} images cannot be read, the most that "
                            "max_unreadable allows; check the folder of the images, restore the files, or raise it "
                            f"(posenet annotations lint lists all problems): {'; '.join(skipped[:3])}"
                        )
                elif not result[0].main_rows and image.id not in empty:  # in a file that is smaller than annotated
                    without_sample[no_main] += 1
                else:
                    changed.update(result[1])
                    yield result[0]

    paths = [folder / image.file_name for image in chosen]
    num_bytes = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    write_store(output, usable_images(), num_bytes, skeleton, dataset.path, overwrite, max_side)
    with Store(output) as store:
        pass
    return BuildReport(store, dataset.adjustments, +without_sample, others, tuple(skipped), changed)


def _list_unlabelled(folder: Path, background: bool, skeleton: Skeleton) -> CocoDataset:
    """The images of a folder, of people who are not known. Their sizes are not known yet: 0.

    An image id is the number that is the name of the file, as in COCO, if all names are numbers; else the images are
    numbered from 1 in the order of their names.
    """
    names = [path.relative_to(folder) for path in find_images([folder])]
    ids = [number for name in names if isinstance(number := canonical_id(name.stem), int)]
    if len(set(ids)) < len(names):
        ids = list(range(1, len(names) + 1))
    images = [CocoImage(number, str(name), height=0, width=0) for number, name in zip(ids, names)]
    return CocoDataset(folder, skeleton, images, {}, frozenset(ids if background else ()), Adjustments())


def _read_image(path: Path, image: CocoImage, dataset: CocoDataset, max_side: int) -> tuple[NewImage, list[str]]:
    """Read and check an image file, make its record, and say what was changed.

    ``OSError`` or ``ValueError`` if the file cannot be used.
    """
    data = read_image_file(path)
    header = check_image(data)
    original = (len(data), zlib.crc32(data.data), header.orientation)
    orientation = header.orientation
    size = original_size = header.displayed_size
    annotated_size = (image.height, image.width)
    people = dataset.people.get(image.id)
    mains: list[int] = []
    changes = []
    if people is not None:
        check_proportions(path, size, annotated_size)
        people = scale_people(people, annotated_size, size)
        mains = select_main_persons(people, dataset.skeleton.min_labelled_keypoints)
        if original_size != annotated_size:
            changes.append("of another size than annotated, to which the annotations were scaled")
    zoom = _zoom_to_store(size, max_side, people.areas[mains] if people else np.zeros(0))
    if zoom < 1:
        size = max(1, round(size[0] * zoom)), max(1, round(size[1] * zoom))
        pixels = decode_checked_image(data, *original_size, 1, orientation)
        pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
        data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
        orientation = 1
        changes.append("made smaller")
    if people is None:  # it shows nobody, or the loss of labels counts nowhere
        is_background = image.id in dataset.background
        joints = np.zeros((0, dataset.skeleton.num_keypoints, 3), np.float32)
        table = np.zeros(0, PERSON_TYPE)
        person_mask = np.zeros(size, np.uint8)
        mask_miss = np.full(size, is_background, np.uint8)
        main_rows = [] if is_background else [NO_PERSON]
    else:
        people = scale_people(people, original_size, size)
        rows = np.flatnonzero(people.is_labelled)
        joints = people.keypoints[rows]
        table = np.zeros(len(rows), PERSON_TYPE)
        table["annotation_id"] = people.ids[rows]
        table["box"] = people.boxes[rows]
        table["area"] = people.areas[rows]
        person_mask, mask_miss = person_masks(people, *size)
        main_rows = np.searchsorted(rows, mains).tolist()  # main persons are labelled, so each is one of ``rows``
    record = Record(
        source=path,
        image_id=image.id,
        file_name=image.file_name,
        height=size[0],
        width=size[1],
        orientation=orientation,
        image_bytes=data,
        joints=joints,
        person_mask=encode_mask(person_mask),
        mask_miss=encode_mask(mask_miss),
        people=table,
    )
    return NewImage(record, main_rows, original), changes


def _zoom_to_store(size: tuple[int, int], max_side: int, areas: np.ndarray) -> float:
    """The factor by which an image is made smaller: to ``max_side`` if that is not 0, but not so small that one of the
    ``areas`` of its main persons gets too small for one."""
    longer = max(size)
    if not 0 < max_side < longer:
        return 1.0
    # Who is clear stays so, and who is small can still be trained on.
    smallest = np.where(areas >= CLEAR_AREA, CLEAR_AREA, MIN_AREA)
    return float(np.sqrt(smallest / areas).max(initial=max_side / longer))
