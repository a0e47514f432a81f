"""Builds a store from a folder of images, with a COCO keypoint file or without annotations."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import cv2
import h5py
import numpy as np

from posenet.annotations.coco import CocoImage
from posenet.annotations.outlines import encode_mask
from posenet.annotations.people import People, person_masks, read_annotations, scale_people, select_main_persons
from posenet.data.inspection import StoreSummary, summarize
from posenet.data.store import (
    FORMAT,
    NO_PERSON,
    ORIGINAL_TYPE,
    PERSON_TYPE,
    RECORD_TYPE,
    SCHEMA,
    SCHEMA_WITHOUT_ORIGINAL,
    OriginalRow,
    Record,
    RecordRow,
    Store,
    compute_fingerprint,
    make_image_keys,
)
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import begins_like, check_outputs, flush_to_disk, is_standard_output, resolve_link
from posenet.images import (
    AnnotatedFrame,
    check_image,
    check_proportions,
    count_frames,
    decode_checked_image,
    find_annotated_frame,
    find_images,
    oriented_size,
    parse_header,
    read_image_file,
    require_image_folder,
)
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton_file import skeleton_to_table
from posenet.threads import map_in_threads

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)

MAX_ID_DIGITS = 18
"""Most digits of a file name that is an image id: all such numbers have 64 bits."""
MAX_UNREADABLE = 0.05
"""Default share of unreadable images above which a build fails."""
JPEG_QUALITY = 95
"""Of images that are made smaller."""
WRITE_BYTES = 2**24
"""Images are written to the store when they have this size together: a write by h5py takes as long as checking a small
image."""
SPARE_BYTES = 8 * 2**20
"""Free disk space required for the structures that HDF5 writes in addition to the arrays."""
_HDF5 = re.compile(rb"\x89HDF\r\n\x1a\n")
"""How every HDF5 file begins."""
_UNFINISHED = re.compile(rb"\x89HDF\r\n\x1a\n|\0{8}|\0*\Z")
"""How an unfinished store begins. A build that was killed early has left no byte, or the space for the beginning."""


@dataclass(frozen=True)
class BuildReport:
    """The result of a build."""

    summary: StoreSummary
    num_crowds: int  # in the stored images
    num_without_outline: int  # people and crowds in the stored images whose mask is their box
    num_without_main_person: int  # requested images without a main person
    skipped: tuple[str, ...]  # one line for every unreadable image
    num_resized: int  # stored images of another size than annotated, to which their annotations are scaled
    # Stored images with an EXIF orientation, by the frame of their annotations and what decided it.
    frames: dict[str, int]
    num_empty: int  # requested images without any annotation that are not stored
    num_shrunk: int  # stored images that were made smaller
    num_reused: int  # stored images that were not decoded, because the replaced store has the same bytes
    seconds: float


class _PreparedImage(NamedTuple):
    """An image that is ready to be written."""

    record: Record
    original: OriginalRow
    main_rows: list[int]
    frame: AnnotatedFrame
    is_resized: bool  # after it was annotated
    is_shrunk: bool
    is_reused: bool


class _Replaced(NamedTuple):
    """The store that a build replaces. What it says of an image holds for every file with the same bytes."""

    store: Store
    row_of: dict[int, int]  # by image key

    @classmethod
    def open(cls, path: Path) -> _Replaced | None:
        """None if there is no store, or it cannot be used."""
        try:
            store = Store(path)
        except DataError:
            return None
        return cls(store, {key: row for row, key in enumerate(store.image_keys.tolist())})

    def find(self, original: OriginalRow) -> int | None:
        """The row of an image file; None if its bytes are not those of a file in the store."""
        return self.row_of.get(int(make_image_keys(*np.array(original[:2])[:, None])[0]))

    def read_shrunk(self, row: int, original: OriginalRow, size: tuple[int, int]) -> np.ndarray | None:
        """The bytes of an image, if it was made smaller to (height, width) ``size`` in the frame of ``original``."""
        record = self.store.records[row]
        is_same = (record["height"], record["width"]) == size and self.store.originals[row].item() == original
        if not is_same or self.store.jpeg_quality != JPEG_QUALITY:
            return None
        try:
            return self.store.read_record(row).image_bytes
        except DataError:  # it is damaged
            return None


def build_store(
    images: str | Path,
    annotations: str | Path | None,
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
        annotations: COCO keypoint JSON for ``skeleton``. None stores all images of the folder without annotations, in
            the order of their names and as viewers display them: as ``background``, or for training with a teacher.
        image_ids, limit: store only these images, and only the first ``limit`` of them; None stores all.
        workers: threads; None means one per usable core. The bytes of the store do not depend on it.
        max_unreadable: share of the images, rounded up to whole images, that may be missing, damaged or of other
            proportions than annotated. They are skipped and reported.
        overwrite: replace an existing store when the new one is complete. Images that it contains are not checked
            again, nor made smaller again.
        skeleton: that of the annotations, or the path of its file.
        exif_frame: see ``posenet.images.find_annotated_frame``.
        max_side: images with a longer side than this many pixels are stored smaller, with their annotations: as JPEG of
            the quality ``JPEG_QUALITY``, in the frame of the annotations. 0 stores all images as they are.
        background: also store the images without any annotation, as images that show nobody.

    Raises:
        DataError: the input or the output cannot be used, or too many images are unreadable. No store is written.
    """
    start = time.perf_counter()
    skeleton = load_skeleton(skeleton)
    if max_side < 0:
        raise DataError(
            f"max_side is {max_side}; give the longest side in pixels, or 0 to store all images as they are"
        )
    output = Path(output)
    _check_output(resolve_link(output), overwrite)
    folder = Path(images)
    require_image_folder(folder)
    selection = _choose_images(folder, annotations, image_ids, skeleton, background)
    chosen = selection.suitable[:limit]
    if not chosen and selection.empty:
        raise DataError(f"{annotations} has only images without annotations; background=True stores them")
    skipped: dict[int, str] = {}
    frames = []
    stored: list[People] = []
    num_small = 0  # images whose main persons are too small after scaling
    num_resized = 0
    num_shrunk = 0
    num_reused = 0
    replaced = _Replaced.open(output) if overwrite else None

    def prepare(image: CocoImage) -> _PreparedImage | str:
        """The image, or the reason why it cannot be used."""
        try:
            people = selection.people_of.get(image.id)
            return _prepare_image(folder, image, people, skeleton, exif_frame, max_side, background, replaced)
        except DataError as error:
            return f"{error} (image {image.id})"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return f"{folder / image.file_name} (image {image.id}): {reason}"

    sizes = [_file_size(folder / image.file_name) for image in chosen]
    workers = workers or usable_cores()  # threads, because reading and decoding release Python's global lock
    with (
        open_store_writer(output, sum(sizes), skeleton, annotations or folder, overwrite, max_side) as writer,
        contextlib.nullcontext() if replaced is None else replaced.store,
        closing(map_in_threads(prepare, chosen, workers=workers, ahead=4 * workers)) as results,
    ):
        for image, result in zip(chosen, progress_bar(results, "build", len(chosen), disable=not progress)):
            if isinstance(result, str):
                skipped[image.id] = result
                _check_number_of_unreadable(skipped, math.ceil(max_unreadable * len(chosen)), len(chosen))
            elif not result.main_rows and image.id not in selection.empty:
                num_small += 1
            else:
                writer.add(result.record, result.main_rows, result.original)
                frames.append(result.frame)
                num_resized += result.is_resized
                num_shrunk += result.is_shrunk
                num_reused += result.is_reused
                if image.id in selection.people_of:
                    stored.append(selection.people_of[image.id])
    with Store(output, skeleton) as store:
        summary = summarize(store)
    return BuildReport(
        summary=summary,
        num_crowds=sum(int(people.is_crowd.sum()) for people in stored),
        num_without_outline=sum(outline is None for people in stored for outline in people.outlines),
        num_without_main_person=selection.num_unsuitable + num_small,
        num_empty=0 if background else len(selection.empty),
        num_shrunk=num_shrunk,
        num_reused=num_reused,
        skipped=tuple(skipped.values()),
        num_resized=num_resized,
        frames=count_frames(frames),
        seconds=time.perf_counter() - start,
    )


class _ChosenImages(NamedTuple):
    """The images of which a store is built."""

    suitable: list[CocoImage]
    """Those that have a main person, or show nobody and are wanted all the same."""
    num_unsuitable: int
    """How many others were requested."""
    people_of: dict[int, People]
    """By image id; empty without annotations."""
    empty: frozenset[int]
    """Ids of the requested images without any annotation, which are suitable if they are wanted."""


def _choose_images(
    folder: Path,
    annotations: str | Path | None,
    image_ids: Collection[int] | None,
    skeleton: Skeleton,
    background: bool,
) -> _ChosenImages:
    """Read the annotations, and choose the images to store; the arguments are those of ``build_store``."""
    if annotations is None:
        images = _select_images(_list_unlabelled(folder), image_ids, folder)
        return _ChosenImages(images, 0, {}, frozenset(image.id for image in images if background))
    dataset = read_annotations(annotations, skeleton)
    requested = _select_images(dataset.images, image_ids, annotations)
    empty = dataset.background & {image.id for image in requested}
    stored_empty = empty if background else frozenset()
    minimum = skeleton.min_labelled_keypoints
    suitable = [
        image
        for image in requested
        if image.id in stored_empty or select_main_persons(dataset.people[image.id], minimum)
    ]
    return _ChosenImages(suitable, len(requested) - len(suitable), dataset.people, empty)


def _select_images(images: list[CocoImage], ids: Collection[int] | None, source: str | Path) -> list[CocoImage]:
    """The images with these ids, or all, in their order; ``DataError`` if one of them is missing."""
    if ids is None:
        return images
    wanted = set(ids)
    selected = [image for image in images if image.id in wanted]
    unknown = wanted - {image.id for image in selected}
    if unknown:
        raise DataError(f"{source} has no image {min(unknown)} ({len(unknown)} unknown in all); correct the ids")
    return selected


def _list_unlabelled(folder: Path) -> list[CocoImage]:
    """The images of a folder. Their sizes are not known yet: 0.

    An image id is the number that is the name of the file, as in COCO, if all names are numbers; else the images are
    numbered from 1 in the order of their names.
    """
    names = [path.relative_to(folder) for path in find_images([folder])]
    stems = [name.stem for name in names]
    ids = [int(stem) for stem in stems if stem.isascii() and stem.isdecimal() and len(stem) <= MAX_ID_DIGITS]
    if len(set(ids)) < len(names):
        ids = list(range(1, len(names) + 1))
    return [CocoImage(number, str(name), height=0, width=0) for number, name in zip(ids, names)]


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the image will be reported as unreadable
        return 0


def _check_number_of_unreadable(skipped: dict[int, str], allowed: int, num_images: int) -> None:
    if len(skipped) > allowed:
        first = "; ".join(list(skipped.values())[:3])
        raise DataError(
            f"more than {allowed} of {num_images} images cannot be read, the most that max_unreadable allows; check "
            "the folder of the images, restore the files, or raise it (posenet annotations lint lists all problems): "
            f"{first}"
        )


def _prepare_image(
    folder: Path,
    image: CocoImage,
    people: People | None,
    skeleton: Skeleton,
    exif_frame: ExifFrame,
    max_side: int,
    background: bool,
    replaced: _Replaced | None,
) -> _PreparedImage:
    """Read and check an image and make the record of it and its labelled people.

    Without annotations (None), the image is stored as displayed. It shows nobody if it is ``background``; else the loss
    of labels counts nowhere.

    Raises:
        OSError, ValueError: the image cannot be used.
    """
    image_bytes = read_image_file(folder / image.file_name)
    original = OriginalRow(len(image_bytes), zlib.crc32(image_bytes.data), orientation=1)
    known_row = None if replaced is None else replaced.find(original)
    header = check_image(image_bytes) if known_row is None else parse_header(image_bytes)
    annotated_size = header.displayed_size if people is None else (image.height, image.width)
    frame = find_annotated_frame(header, *annotated_size, "displayed" if people is None else exif_frame)
    original = original._replace(orientation=frame.orientation)
    file_size = oriented_size(*header.stored_size, frame.orientation)
    check_proportions(folder / image.file_name, file_size, annotated_size)
    size = _limit_size(file_size, max_side)
    orientation = frame.orientation
    if size != file_size:
        shrunk = None
        if replaced is not None and known_row is not None:
            shrunk = replaced.read_shrunk(known_row, original, size)
        if shrunk is None:
            known_row = None
            shrunk = _shrink(image_bytes, file_size, size, frame.orientation)
        image_bytes, orientation = shrunk, 1
    if people is None:
        joints = np.zeros((0, skeleton.num_keypoints, 3), np.float32)
        table = np.zeros(0, PERSON_TYPE)
        mask_all = np.zeros(size, np.uint8)
        mask_miss = np.full(size, background, np.uint8)
        main_rows = [] if background else [NO_PERSON]
    else:
        points = people.keypoints[people.keypoints[..., 2] > 0, :2]
        is_inside, is_inside_turned = ((points <= limits).all() for limits in (file_size[::-1], file_size))
        if frame == AnnotatedFrame(1, "size") and is_inside_turned and not is_inside:
            raise ValueError("has keypoints that only fit it as displayed; run posenet annotations fix with --images")
        people = scale_people(people, annotated_size, size)
        rows = np.flatnonzero(people.is_labelled)
        joints = people.keypoints[rows]
        table = np.zeros(len(rows), PERSON_TYPE)
        table["annotation_id"] = people.ids[rows]
        table["box"] = people.boxes[rows]
        table["area"] = people.areas[rows]
        mask_all, mask_miss = person_masks(people, *size)
        main_rows = np.searchsorted(rows, select_main_persons(people, skeleton.min_labelled_keypoints)).tolist()
    record = Record(
        source=folder / image.file_name,
        image_id=image.id,
        file_name=image.file_name,
        height=size[0],
        width=size[1],
        orientation=orientation,
        image_bytes=image_bytes,
        joints=joints,
        mask_all=encode_mask(mask_all),
        mask_miss=encode_mask(mask_miss),
        people=table,
    )
    is_resized = file_size != annotated_size
    return _PreparedImage(record, original, main_rows, frame, is_resized, size != file_size, known_row is not None)


def _limit_size(size: tuple[int, int], max_side: int) -> tuple[int, int]:
    """A (height, width) reduced so that no side is longer than ``max_side`` pixels; 0 reduces none."""
    longer = max(size)
    if not 0 < max_side < longer:
        return size
    height, width = (max(1, round(side * max_side / longer)) for side in size)
    return height, width


def _shrink(image: np.ndarray, size: tuple[int, int], new_size: tuple[int, int], orientation: int) -> np.ndarray:
    """The bytes of a JPEG of ``new_size`` from those of an image that has ``size`` when it is turned by an orientation.

    Sizes are (height, width).
    """
    pixels = decode_checked_image(image, *size, 1, orientation)
    pixels = cv2.resize(pixels, new_size[::-1], interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]


@contextlib.contextmanager
def open_store_writer(
    path: str | Path,
    num_image_bytes: int,
    skeleton: Skeleton = COCO,
    source: str | Path = "",
    overwrite: bool = False,
    max_side: int = 0,
) -> Iterator[StoreWriter]:
    """Write a store under a temporary name, and rename it at the end of the block.

    On any exception, Ctrl-C included, the unfinished file is removed and an existing store stays unchanged. Unfinished
    files of builds that were killed are removed by the next build of the same store.

    Args:
        num_image_bytes: total size of the image files that will be added, or more.
        source: path of the annotation file. Its name is stored, but not used.
        overwrite: replace an existing store. A file that is not HDF5 is never replaced.
        max_side: not 0 if images with a longer side were made smaller.
    """
    path = resolve_link(Path(path))
    _check_output(path, overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_files(path)
        _require_disk_space(path, num_image_bytes)
        with (
            _create_unfinished(path) as unfinished,
            # An array cannot shrink, and the bytes of smaller images are counted at the end: until then they wait here.
            tempfile.TemporaryFile(dir=path.parent) if max_side else contextlib.nullcontext() as waiting,
        ):
            # From layout v110 on, all structures have checksums. Damage to older layouts can crash the library.
            file = h5py.File(unfinished, "w", libver=("v110", "v110"), locking=False)
            try:
                writer = StoreWriter(path, file, num_image_bytes, max_side, waiting)
                yield writer
                writer.write_tables(skeleton, Path(source).name)
                file.flush()
                file.close()
                flush_to_disk(unfinished)
                _check_output(path, overwrite)
                os.replace(unfinished, path)
                flush_to_disk(path.parent)
            except BaseException:
                _discard_writes(file)
                raise
            finally:
                with contextlib.suppress(Exception):  # the null device cannot be extended
                    file.close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
        raise DataError(f"cannot write {path}: {reason}; free disk space, or choose another folder") from error


def _discard_writes(file: h5py.File) -> None:
    """Let an open file write to the null device instead.

    After a write that has failed, closing the file writes again. If that fails too, HDF5 keeps objects that it has
    freed, and crashes when the program ends.
    """
    if not file:  # it is closed
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, file.id.get_vfd_handle(), inheritable=False)
    os.close(null)


class StoreWriter:
    """Appends images to the unfinished store ``file``, which will be called ``path``."""

    def __init__(
        self, path: Path, file: h5py.File, num_image_bytes: int, max_side: int = 0, waiting: IO[bytes] | None = None
    ) -> None:
        self.path = path
        self._file = file
        self._max_side = max_side
        self._waiting = waiting
        self._images = None if max_side else file.create_dataset("images", num_image_bytes, np.uint8)
        self._records: list[RecordRow] = []
        self._originals: list[OriginalRow] = []
        self._file_names: list[bytes] = []
        self._people: list[np.ndarray] = []
        self._samples: list[tuple[int, int]] = []
        self._labels: list[bytes] = []
        self._unwritten: list[np.ndarray] = []
        self._written = 0  # bytes of images
        self._image_end = 0
        self._label_end = 0
        self._num_people = 0

    def add(self, record: Record, main_rows: Sequence[int], original: OriginalRow | None = None) -> None:
        """Append an image with its people; ``main_rows`` are those of its main persons, or ``NO_PERSON``.

        ``original`` is the file of an image that may have been made smaller.
        """
        size = len(record.image_bytes)
        if self._images is not None and self._image_end + size > len(self._images):
            raise DataError(f"{record.source} has grown while the store was built; build it again")
        self._unwritten.append(record.image_bytes)
        arrays = (record.joints.astype("<f4"), record.mask_all.astype("<u2"), record.mask_miss.astype("<u2"))
        labels = b"".join(array.tobytes() for array in arrays)
        self._samples += [(len(self._records), row) for row in main_rows]
        row = RecordRow(
            image_id=record.image_id,
            height=record.height,
            width=record.width,
            orientation=record.orientation,
            num_people=len(record.people),
            first_person=self._num_people,
            image_start=self._image_end,
            image_bytes=size,
            image_crc=zlib.crc32(record.image_bytes.data),
            label_crc=zlib.crc32(labels),
            label_start=self._label_end,
            mask_all_bytes=record.mask_all.nbytes,
            mask_miss_bytes=record.mask_miss.nbytes,
        )
        self._records.append(row)
        self._originals.append(original or OriginalRow(size, row.image_crc, record.orientation))
        self._file_names.append(record.file_name.encode(errors="surrogateescape"))
        self._people.append(record.people)
        self._labels.append(labels)
        self._image_end += size
        self._label_end += len(labels)
        self._num_people += len(record.people)
        if self._image_end - self._written > WRITE_BYTES:
            self._write_images()

    def _write_images(self) -> None:
        _require_disk_space(self.path, self._image_end - self._written)
        if self._unwritten and self._waiting is not None:
            self._waiting.write(np.concatenate(self._unwritten).data)
        elif self._unwritten and self._images is not None:
            self._images[self._written : self._image_end] = np.concatenate(self._unwritten)
        self._unwritten.clear()
        self._written = self._image_end

    def _write_waiting(self, file: IO[bytes]) -> None:
        _require_disk_space(self.path, self._image_end)
        images = self._file.create_dataset("images", self._image_end, np.uint8)
        file.seek(0)
        for start in range(0, self._image_end, WRITE_BYTES):
            images[start : start + WRITE_BYTES] = np.frombuffer(file.read(WRITE_BYTES), np.uint8)

    def write_tables(self, skeleton: Skeleton, source: str) -> None:
        """Write all arrays that are not written yet, and the attributes."""
        if not self._records:
            raise DataError(
                f"nothing to write to {self.path}: no readable image with a main {skeleton.category}; "
                "check the annotations and the image folder"
            )
        tables = {
            "record": np.array(self._records, RECORD_TYPE),
            "file_name": np.array(self._file_names),
            "person": np.concatenate(self._people),
            "sample": np.array(self._samples, "<i8").reshape(-1, 2),
        }
        if self._max_side:
            tables["original"] = np.array(self._originals, ORIGINAL_TYPE)
        self._write_images()
        if self._waiting is not None:
            self._write_waiting(self._waiting)
        _require_disk_space(self.path, self._label_end + sum(table.nbytes for table in tables.values()))
        self._file.create_dataset("labels", data=np.frombuffer(b"".join(self._labels), np.uint8))
        for name, table in tables.items():
            self._file.create_dataset(name, data=table)
        skeleton_text = json.dumps(skeleton_to_table(skeleton))
        texts = {
            "format": FORMAT,
            "skeleton": skeleton_text,
            "source": source or "unknown",
            "fingerprint": compute_fingerprint(skeleton_text, tables),
        }
        for name, text in texts.items():
            # HDF5's checksums protect text of fixed length only.
            self._file.attrs[name] = np.bytes_(text.encode(errors="replace"))
        self._file.attrs["schema"] = SCHEMA if self._max_side else SCHEMA_WITHOUT_ORIGINAL
        if self._max_side:
            self._file.attrs["max_side"] = self._max_side
            self._file.attrs["jpeg_quality"] = JPEG_QUALITY
        self._file.attrs["images"] = len(self._records)
        self._file.attrs["people"] = self._num_people
        self._file.attrs["samples"] = len(self._samples)


def _require_disk_space(path: Path, size: int) -> None:
    """Raise ``DataError`` unless ``size`` more bytes fit on the disk. HDF5 itself may crash on a full disk."""
    free = shutil.disk_usage(path.parent).free
    if free < size + SPARE_BYTES:
        raise DataError(f"cannot write {path}: the disk has {free / 1e6:.0f} MB left; free some space")


@contextlib.contextmanager
def _create_unfinished(store: Path) -> Iterator[Path]:
    """Create the unfinished file of a store, lock it, and remove it at the end if it still exists.

    The lock shows other builds that the file is in use. HDF5's own locks do not: clusters often turn them off. Where a
    file system has no locks, other builds leave the file alone. Windows keeps open files from being removed.
    """
    path = store.with_name(f"{store.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise DataError(f"{path} exists, which a build would write; move it away") from error
    try:
        if sys.platform == "win32":
            os.close(descriptor)
            descriptor = -1
        else:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        path.unlink(missing_ok=True)


def _remove_stale_files(store: Path) -> None:
    """Remove unfinished files of killed builds of a store, but none that may be in use or another program's."""
    pattern = re.compile(rf"{re.escape(store.name)}\.\d+\.partial")
    for path in store.parent.iterdir():
        if not pattern.fullmatch(path.name):
            continue
        try:
            if begins_like(path, _UNFINISHED) and not _is_locked(path):
                path.unlink()
        except FileNotFoundError:  # another build has removed it
            continue
        except OSError as error:
            _log.warning("%s is left of another build (%s); delete it if none is running", path, error.strerror)


def _is_locked(path: Path) -> bool:
    """Whether a running build has locked its unfinished file; ``OSError`` if the file system has no locks."""
    if sys.platform == "win32":
        return False
    with open(path, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _check_output(path: Path, overwrite: bool) -> None:
    """Raise ``DataError`` unless a store may be written to ``path``."""
    if is_standard_output(path):
        raise DataError("a store cannot be written to standard output; give the name of a file")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a file in it, such as {path / 'train.h5'}")
    check_outputs([path], overwrite=overwrite)
    if not path.exists():
        return
    try:
        is_hdf5 = begins_like(path, _HDF5)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; choose another output") from error
    if not is_hdf5:
        raise DataError(f"{path} is not an HDF5 file and is not overwritten; choose another output")
