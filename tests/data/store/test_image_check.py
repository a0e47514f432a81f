"""Reading image files and checking that they decode."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from posenet.data.store.image_check import read_checked_image

from posenet.images import add_jpeg_end, decode_annotated_image
from tests.helpers.drawn_data import HEIGHT, WIDTH


def damage(jpeg: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cut the file, flip a bit, delete a part, overwrite a part, or change a byte of the header."""
    start, size = (int(value) for value in rng.integers(1, (len(jpeg), 900)))
    part = slice(start, start + size)
    data = jpeg.copy()
    match rng.integers(5):
        case 0:
            return data[:start]
        case 1:
            data[start] ^= 1 << rng.integers(8)
        case 2:
            return np.delete(data, part)
        case 3:
            data[part] = rng.integers(256, size=len(data[part]))
        case _:
            data[start % 600] = rng.integers(256)
    return data


@pytest.mark.parametrize(
    "options",
    [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 3)],
    ids=["plain", "progressive", "restarts"],
)
def test_the_check_at_reduced_size_accepts_what_decodes_at_full_size(options: tuple[int, ...], tmp_path: Path) -> None:
    """JPEG data that end before the last pixels are the one exception: some releases of OpenCV decode them."""
    rng = np.random.default_rng(len(options))
    path = tmp_path / "a.jpg"
    pixels = cv2.GaussianBlur(rng.integers(0, 256, (66, 101, 3), np.uint8), (0, 0), 1)
    jpeg = cv2.imencode(".jpg", pixels, options)[1]
    num_accepted = 0
    for _ in range(150):
        data = damage(jpeg, rng)
        path.write_bytes(data.tobytes())
        accepted = succeeds(read_checked_image, path, 66, 101, "stored")
        decodes = succeeds(decode_annotated_image, data, 66, 101)
        ends_early = data.tobytes().rfind(b"\xff\xd9") < data.tobytes().rfind(b"\xff\xda")
        is_complete = not ends_early or succeeds(add_jpeg_end, data)
        assert accepted == (decodes and is_complete)
        num_accepted += accepted
    assert 20 < num_accepted < 130


def succeeds(function, *args) -> bool:
    try:
        function(*args)
    except ValueError:
        return False
    return True


def test_an_image_one_pixel_smaller_than_annotated_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    cv2.imwrite(str(path), np.zeros((HEIGHT, WIDTH - 1, 3), np.uint8))
    with pytest.raises(ValueError, match=f"is {WIDTH - 1} x {HEIGHT} pixels, annotated as {WIDTH} x {HEIGHT}"):
        read_checked_image(path, HEIGHT, WIDTH, "stored")
