"""Image files: finding, reading, decoding and writing them.

Images are read upright, as their EXIF orientation says. OpenCV decodes the pixels; Pillow reads the headers. HEIC files
need the extra ``heif``.
"""

import contextlib
import functools
import glob
import io
import logging
import os
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, Union

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, ImageSequence
from PIL.TiffImagePlugin import TiffImageFile

from posenet.downloading import download_bytes, is_address, is_data_address, without_credentials
from posenet.errors import DataError
from posenet.files import open_input, read_input, require_regular_file, write_atomically
from posenet.messages import MAX_REASON, pluralize, to_single_line

_log = logging.getLogger(__name__)

ChannelOrder = Literal["bgr", "rgb"]
ImageInput: TypeAlias = Union[str, "os.PathLike[str]", np.ndarray, Image.Image, bytes, bytearray, memoryview, BinaryIO]
"""An image file, as its path, its address, its bytes or an open file; or an image as an array or a PIL image."""

IMAGE_SUFFIXES = frozenset(".avif .bmp .heic .heif .hif .jpeg .jpg .png .pgm .ppm .tif .tiff .webp".split())
"""Files that count as images when a folder is listed."""
WRITABLE_SUFFIXES = frozenset(".bmp .jpeg .jpg .png .ppm .tif .tiff .webp".split())
"""The formats that OpenCV writes everywhere, in colour."""
ORIENTED_FORMATS = frozenset(["JPEG", "MPO", "PNG", "WEBP"])
"""Pillow's names of the formats with two frames; those of TIFF, HEIC and AVIF files have one here."""
REDUCTIONS = (8, 4, 2)
"""Factors by which a JPEG file can be decoded smaller, which takes less time."""
_REMEDY = "save it as JPEG or PNG, smaller if it is very large"
_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
_HEIF_BRANDS = frozenset(b"avif avis heic heix heim heis hevc hevx mif1 msf1".split())
"""The kinds of HEIC and AVIF files, which they state after ``ftyp`` (ISO/IEC 23008-12); videos state others."""


class ImageHeader(NamedTuple):
    """The size of the pixels in an image file, and its EXIF orientation."""

    height: int
    width: int
    orientation: int  # 1-8; 1 is upright

    @property
    def stored_size(self) -> tuple[int, int]:
        """(height, width) of the pixels in the file."""
        return self.height, self.width

    @property
    def displayed_size(self) -> tuple[int, int]:
        """(height, width) of the image as viewers display it."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def require_image_folder(folder: str | Path) -> None:
    """Raise ``DataError`` unless a path is a folder."""
    if not Path(folder).is_dir():
        raise DataError(f"image folder {folder} does not exist, or is a file; give the folder of the images")


def find_images(
    inputs: Sequence[str | Path], suffixes: Collection[str] = IMAGE_SUFFIXES, *, recursive: bool = False
) -> list[Path]:
    """Expand files, folders and glob patterns, each image once, in the order given; ``DataError`` if one has no image.

    A file that is named is included whatever its suffix. A folder, with ``recursive`` also its subfolders except hidden
    ones and links, is searched for ``suffixes``; a log message counts what else is in it.
    """
    found: dict[str, Path] = {}
    for item in map(str, inputs):
        path = Path(item)
        if path.is_dir():
            files = _search_folder(path, suffixes, recursive)
        elif path.is_file():
            files = [path]
        else:
            if os.path.lexists(item):  # perhaps a FIFO, or a loop of links
                with image_errors(path):
                    require_regular_file(path)
            files = sorted(match for match in map(Path, glob.glob(item, recursive=True)) if match.is_file())
        if not files:
            raise DataError(f"no file matches {item}" if glob.has_magic(item) else f"no such file or folder: {item}")
        for file in files:
            found.setdefault(os.path.realpath(file), file)
    return list(found.values())


def _search_folder(folder: Path, suffixes: Collection[str], recursive: bool) -> list[Path]:
    found: list[Path] = []
    num_others = 0

    def fail(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if not recursive:
            num_others += len(folders)
            folders.clear()
        files = [Path(root, name) for name in names if not name.startswith(".")]  # macOS writes ._a.png beside a.png
        images = [file for file in files if file.suffix.lower() in suffixes]
        found += images
        num_others += len(files) - len(images)
    others = pluralize(num_others, "other file")
    if not recursive:
        others = pluralize(num_others, "other file or subfolder", "other files or subfolders") + ", see --recursive"
    if not found:
        looked_for = " ".join(sorted(suffixes))
        raise DataError(f"no images in folder {folder} (looked for {looked_for}); it has {others}")
    if num_others:
        _log.warning("left out of folder %s: %s", folder, others)
    return sorted(found, key=lambda path: path.parts)


def read_image_file(path: str | Path) -> np.ndarray:
    """The (N,) uint8 bytes of an image file; ``OSError`` if it cannot be read or is no regular file."""
    return np.frombuffer(read_input(path), np.uint8)


def read_image(path: str | Path) -> np.ndarray:
    """Read the image at a path or an http address as ``decode_image`` does; ``DataError`` if that fails."""
    with image_errors(path):
        is_url = is_address(str(path))
        return decode_image(np.frombuffer(download_bytes(str(path)), np.uint8) if is_url else read_image_file(path))


def read_header(path: str | Path) -> ImageHeader:
    """Read the size and the orientation of an image file; ``DataError`` if it cannot be read or is no image."""
    with image_errors(path), open_input(path) as file:
        return parse_header(file)


@contextlib.contextmanager
def image_errors(path: str | Path) -> Iterator[None]:
    """Within this context, the errors of reading and decoding a file become ``DataError``, which names it."""
    name = without_credentials(str(path))[:500]  # it may be an image as text, by mistake
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{name} {error}") from error


def parse_header(file: BinaryIO) -> ImageHeader:
    """Read the size and the orientation of an image file; ``ValueError`` if it is none.

    Files of other formats than ``ORIENTED_FORMATS`` are decoded.
    """
    if header := _oriented_header(file):
        return header
    file.seek(0)
    height, width, _ = _decode(np.frombuffer(file.read(), np.uint8)).shape
    return ImageHeader(height, width, 1)


def _oriented_header(file: BinaryIO) -> ImageHeader | None:
    """The header of a file whose format may have an EXIF orientation; None of others, which OpenCV may decode.

    ``ValueError`` if it has more pixels than Pillow allows, or colours that OpenCV decodes wrongly.
    """
    Image.init()  # all formats, before several threads look for one
    try:
        image = Image.open(file)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"is too large ({str(error).partition(',')[0]}); {_REMEDY}") from error
    except Exception:  # Pillow's plugins raise many kinds for damaged files
        return None
    if image.mode == "LAB":
        raise ValueError(f"has Lab colours, which OpenCV decodes wrongly; {_REMEDY}")
    if image.format not in ORIENTED_FORMATS:
        return None
    return ImageHeader(image.height, image.width, _exif_orientation(image))


def holds_several_images(path: str | Path) -> bool:
    """Whether an image file is an animation, or has several pages. False of one that Pillow cannot open; of one that is
    cut off, Pillow raises any error."""
    with open_input(path) as file:
        try:
            image = Image.open(file)
        except Exception:
            return False
        if image.format not in ("AVIF", "GIF", "PNG", "TIFF", "WEBP"):
            return False
        if not isinstance(image, TiffImageFile):
            return bool(getattr(image, "n_frames", 1) > 1)
        kinds = [page.getexif().get(ExifTags.Base.NewSubfileType, 0) for page in ImageSequence.Iterator(image)]
        return sum(not kind & 1 for kind in kinds) > 1  # the others are small copies


def _exif_orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1-8; 1 where there is none or the EXIF data are damaged."""
    exif = Image.Exif()
    try:  # not with image.getexif(), which decodes a PNG file without EXIF data, and also searches the XMP data
        exif.load(image.info.get("exif", b""))
        orientation = exif.get(ExifTags.Base.Orientation)
    except Exception:
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def has_proportions(size: tuple[int, int], annotated_size: tuple[int, int]) -> bool:
    """Whether an image of (height, width) ``size`` can be the annotated one, resized to whole pixels."""
    (height, width), (annotated_height, annotated_width) = size, annotated_size
    difference = abs(width * annotated_height - height * annotated_width)
    return difference <= max(width + height, annotated_width + annotated_height)


def check_proportions(path: str | Path, size: tuple[int, int], annotated_size: tuple[int, int]) -> None:
    """``DataError`` unless ``has_proportions``."""
    if not has_proportions(size, annotated_size):
        raise DataError(
            f"{path} is {size[1]} x {size[0]} pixels, annotated as {annotated_size[1]} x {annotated_size[0]}; it may "
            "be resized, but not cropped or turned: give the folder of the annotated images"
        )


def apply_orientation(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn the stored pixels (H, W, 3) of an image by an EXIF orientation, 1-8, as a viewer does."""
    if orientation >= 5:
        image = cv2.transpose(image)
    # In OpenCV's numbers, 1 mirrors left and right, 0 top and bottom, -1 both.
    flip = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    return image if flip is None else cv2.flip(image, flip)


def decode_image(data: np.ndarray) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image file, grey, transparent and 16-bit ones too, to (H, W, 3) uint8 BGR.

    The image is rotated by its EXIF orientation. A ``ValueError`` says why bytes cannot be decoded.
    """
    return decode_reduced_image(data, lambda size: 1)[0]


def decode_reduced_image(
    data: np.ndarray, reduction_of: Callable[[tuple[int, int]], int]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode an image file as ``decode_image`` does, but a JPEG file at a fraction of its size.

    ``reduction_of`` the (height, width) of the upright image is one of ``REDUCTIONS`` that divides both, or 1. Returns
    the pixels, and the (height, width) of the whole image.
    """
    header = _oriented_header(io.BytesIO(data.data))
    if header is None:
        image = _decode(data)
        return image, (image.shape[0], image.shape[1])
    reduction = reduction_of(header.displayed_size) if is_jpeg(data) else 1
    return apply_orientation(_decode(data, reduction), header.orientation), header.displayed_size


def decode_checked_image(
    data: np.ndarray, height: int, width: int, reduction: int = 1, orientation: int = 1
) -> np.ndarray:
    """Decode the (N,) uint8 bytes of an image whose header has been checked, to (H, W, 3) uint8 BGR.

    Args:
        height, width: the size after turning; ``ValueError`` if the image has another one.
        reduction: 2, 4 or 8 decodes a JPEG at that fraction of its size, rounded up, in less time.
        orientation: the EXIF orientation by which to turn the stored pixels.
    """
    image = apply_orientation(_decode(data, reduction), orientation)
    found_height, found_width = image.shape[:2]
    if (found_height, found_width) != (-(-height // reduction), -(-width // reduction)):
        found = f"{found_width * reduction} x {found_height * reduction}"
        raise ValueError(f"has {found} pixels instead of {width} x {height}; {_REMEDY}")
    return image


def check_image(data: np.ndarray) -> ImageHeader:
    """Check that the (N,) uint8 bytes of an image file decode to the declared size; return its header.

    A ``ValueError`` says why they do not.
    """
    header = parse_header(io.BytesIO(data.data))
    # At an eighth of the size, all data of a JPEG are read too, in three quarters of the time.
    decode_checked_image(data, header.height, header.width, 8 if is_jpeg(data) else 1)
    return header


def is_jpeg(data: np.ndarray) -> bool:
    """Whether the (N,) uint8 bytes of a file begin like a JPEG file."""
    return data[:2].tobytes() == _JPEG_START


def is_web_page(start: bytes) -> bool:
    """Whether data begin like HTML, which servers send for the page around an image."""
    return start.lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _decode(data: np.ndarray, reduction: int = 1) -> np.ndarray:
    """Decode the pixels as stored; those of HEIC, AVIF and TIFF files as displayed, which is their only frame here."""
    if is_web_page(data[:100].tobytes()):
        raise ValueError("is a web page; give the address of the image or the video itself")
    if data[4:8].tobytes() == b"ftyp" and data[8:12].tobytes() in _HEIF_BRANDS:
        return _decode_heif(data)
    flag = cv2.IMREAD_COLOR if reduction == 1 else getattr(cv2, f"IMREAD_REDUCED_COLOR_{reduction}")
    image = _decode_with_opencv(_with_jpeg_end(data) if is_jpeg(data) else data, flag)
    # OpenCV keeps the upper 8 of 16 bits, of which data of 12 bits and fewer use 4 at most.
    if not is_jpeg(data) and image.max() <= 16:
        deep = _decode_with_opencv(data, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR)
        return _to_8_bits(deep) if deep.dtype == np.uint16 else image
    return image


def _to_8_bits(image: np.ndarray) -> np.ndarray:
    """Scale a uint16 image to uint8: the largest number of the smallest usual depth that holds all becomes 255.

    Cameras of 12 bits write their numbers into the lower bits of 16. A dark photograph of 16 bits becomes brighter by
    that, and a message says so; where people are does not depend on it.
    """
    brightest = int(image.max())
    # Data of 14 bits are only somewhat dark, as photographs may be.
    depth = next(depth for depth in (8, 10, 12, 16) if brightest < 2**depth)
    if depth < 16 and brightest:
        _log_bit_depth(depth)
    largest = 2**depth - 1
    scaled: np.ndarray = (image.astype(np.uint32) * 255 + largest // 2) // largest
    return scaled.astype(np.uint8)


@functools.cache  # once for each depth
def _log_bit_depth(depth: int) -> None:
    _log.warning("images of 16 bits whose brightest pixel is below %d are read as images of %d bits", 2**depth, depth)


def _decode_with_opencv(data: np.ndarray, flags: int) -> np.ndarray:
    image = None
    with contextlib.suppress(cv2.error):
        image = cv2.imdecode(data, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise ValueError(f"cannot be decoded; copy or download the image itself again, or {_REMEDY}")
    return image


def _with_jpeg_end(data: np.ndarray) -> np.ndarray:
    """A JPEG file, with its end if it lacks that alone; ``ValueError`` if it lacks data of the picture, too.

    Some cameras do not write the end. Decoders fill missing pixels with grey and report no error. So different data are
    appended: pixels that depend on them are missing. Pillow decodes them, because OpenCV prints what it finds wrong.
    """
    content = data.tobytes()
    if _JPEG_SCAN not in content[max(content.rfind(_JPEG_END), 0) :]:
        return data
    picture = content.rstrip(b"\0").removesuffix(b"\xff")
    try:
        files = (io.BytesIO(picture + 64 * padding + _JPEG_END) for padding in (b"", b"\x55", b"\xaa"))
        first, *others = (np.asarray(Image.open(file)) for file in files)
        is_complete = all(np.array_equal(first, other) for other in others)
    except Exception:
        is_complete = False
    if not is_complete:
        raise ValueError("is cut off: data of the picture are missing; copy it or download it again")
    return np.frombuffer(picture + _JPEG_END, np.uint8)


def _decode_heif(data: np.ndarray) -> np.ndarray:
    """Decode a HEIC or AVIF file as displayed: its own rotation and, where it has one, that of EXIF are followed."""
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    try:
        rgb = ImageOps.exif_transpose(Image.open(io.BytesIO(data.data))).convert("RGB")
    except Exception as error:
        raise ValueError(f"cannot be decoded; pip install 'simplepose[heif]' reads HEIC, or {_REMEDY}") from error
    return cv2.cvtColor(np.asarray(rgb), cv2.COLOR_RGB2BGR)


def is_encoded(image: object) -> bool:
    """Whether an object holds the bytes of an image file: bytes, an open file, an array of bytes, a data: address."""
    if isinstance(image, str):
        return is_data_address(image)
    is_array = isinstance(image, np.ndarray) and image.ndim == 1 and image.dtype == np.uint8
    return is_array or isinstance(image, (bytes, bytearray, memoryview)) or hasattr(image, "read")


def to_bgr(image: ImageInput, channels: ChannelOrder = "bgr") -> np.ndarray:
    """Convert an image to (H, W, 3) uint8 BGR; an array in that form is not copied.

    Args:
        image: an image file or a PIL image, which are read upright as their EXIF data say; or an array: (H, W) or
            (H, W, 1) grey, (H, W, 3) colours or (H, W, 4) colours and alpha, which is dropped; uint8 or uint16. uint16
            is 0-65535, or 0-4095 and so on if no pixel is brighter. A file is given as its path, its address (http,
            https, data), its bytes, or an open file.
        channels: order of the colours of an array.

    ``DataError`` if it is something else, or its file cannot be read.
    """
    if channels not in ("bgr", "rgb"):
        raise DataError(f"channels must be 'bgr' or 'rgb', not {channels!r}")
    if isinstance(image, (str, os.PathLike)) and not is_encoded(image):
        return read_image(os.fspath(image))
    try:
        if isinstance(image, Image.Image):
            # Modes such as I;16 have one channel of other numbers than bytes, which are kept.
            array = np.asarray(image if image.mode.startswith(("I", "F")) else image.convert("RGB"))
            return apply_orientation(_array_to_bgr(array, "rgb"), _exif_orientation(image))
        if is_encoded(image):
            content: Any = urllib.request.urlopen(image) if isinstance(image, str) else image
            return decode_image(np.frombuffer(content.read() if hasattr(content, "read") else content, np.uint8))
        array = np.asarray(image)
        if array.ndim == 0:  # of None, for example, which cv2.imread returns for a file that it cannot read
            raise TypeError("it has no pixels")
        return _array_to_bgr(array, channels)
    except DataError:
        raise
    except Exception as error:  # of a tensor with a gradient, or of a text file, for example
        found = f"{type(image).__name__}: {to_single_line(str(error))[:MAX_REASON]}"
        raise DataError(f"an image must be a path, an address, a PIL image or an array, not {found}") from error


def _array_to_bgr(image: np.ndarray, channels: ChannelOrder) -> np.ndarray:
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or not image.size or image.shape[2] not in (1, 3, 4):
        raise DataError(
            f"an image must be height x width with 1, 3 or 4 channels, not of shape {image.shape}; channels come last "
            "after image.transpose(1, 2, 0), of a tensor image.permute(1, 2, 0); several images are for "
            "predictor.stream(images)"
        )
    image = image.astype(image.dtype.newbyteorder("="), copy=False)
    if image.dtype not in (np.uint8, np.uint16):
        raise DataError(
            f'an image must be of type uint8 or uint16, not {image.dtype}; give image.astype("uint8") of values from 0 '
            'to 255, or (image * 255).astype("uint8") of values from 0 to 1'
        )
    image = image[..., :3] if channels == "bgr" else image[..., 2::-1]
    if image.dtype == np.uint16:
        image = _to_8_bits(image)
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else np.ascontiguousarray(image)


def write_image(path: str | Path, image: np.ndarray) -> None:
    """Write an image, complete or not at all; ``DataError`` if OpenCV cannot write the format of the suffix."""
    try:
        done, data = cv2.imencode(Path(path).suffix, image)
    except cv2.error:
        done = False
    if not done:
        raise DataError(f"cannot write {path}: OpenCV does not write this format, or not in this size; choose .png")
    write_atomically(path, data.tobytes())
