"""Image files with an EXIF orientation in which one block is lit, and its centre in both frames."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

SIZE = (160, 240)
"""(height, width) of the stored pixels; sides that no reduction rounds."""
BLOCK = 16
"""Side of the lit block in pixels."""


@dataclass(frozen=True)
class OrientedImage:
    """An image file, and (height, width) and x, y of its block in the stored and in the displayed frame."""

    data: bytes
    sizes: dict[str, tuple[int, int]]
    centres: dict[str, tuple[float, float]]


def oriented_image(
    orientation: int, size: tuple[int, int] = SIZE, corner: tuple[int, int] = (150, 32), suffix: str = "jpeg"
) -> OrientedImage:
    """Draw an image with Pillow, which also displays it: a reference that shares no code with the program.

    Args:
        corner: x, y of the block's first stored pixel.
    """
    pixels = np.full((*size, 3), 40, np.uint8)
    x, y = corner
    pixels[y : y + BLOCK, x : x + BLOCK] = 250
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    options = {} if suffix == "jpeg" else {"lossless": True}
    Image.fromarray(pixels).save(file, suffix, exif=exif.tobytes(), **options)
    with Image.open(io.BytesIO(file.getvalue())) as image:
        displayed = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    frames = {"stored": pixels, "displayed": displayed}
    sizes = {name: frame.shape[:2] for name, frame in frames.items()}
    return OrientedImage(file.getvalue(), sizes, {name: lit_centre(frame) for name, frame in frames.items()})


def lit_centre(image: np.ndarray) -> tuple[float, float]:
    """x, y of the centre of the bright pixels of an (H, W, 3) image."""
    y, x = np.argwhere(image.min(axis=2) > 150).mean(axis=0).tolist()
    return x, y
