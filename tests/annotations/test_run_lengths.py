"""Run lengths: round trips, agreement with pycocotools, damaged input."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from posenet.annotations.people import (
    MAX_STORED_RUN,
    decode_mask,
    encode_mask,
    parse_coco_text,
    unpack_run_lengths,
    validate_run_lengths,
)
from tests.helpers.drawn_data import HEIGHT, WIDTH, box_mask


def decode_stored(stored: bytes, height: int, width: int) -> np.ndarray:
    return decode_mask(validate_run_lengths(unpack_run_lengths(stored), height * width), height, width)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools")
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (37, 53), (300, 200), (500, 600)])
@pytest.mark.parametrize("share", [0.0, 1e-5, 0.02, 0.5, 1.0])
def test_masks_survive_both_forms(shape: tuple[int, int], share: float) -> None:
    mask = (np.random.default_rng(5).random(shape) < share).astype(np.uint8)
    decoded = decode_stored(encode_mask(mask), *shape)
    np.testing.assert_array_equal(decoded, mask)
    assert decoded.flags.c_contiguous and decoded.dtype == np.uint8
    text = coco_mask.encode(np.asfortranarray(mask))["counts"]
    np.testing.assert_array_equal(decode_mask(validate_run_lengths(parse_coco_text(text), mask.size), *shape), mask)


@pytest.mark.parametrize(
    "length", [MAX_STORED_RUN - 1, MAX_STORED_RUN, MAX_STORED_RUN + 1, 2 * MAX_STORED_RUN, 200_000]
)
def test_runs_may_be_longer_than_a_stored_number(length: int) -> None:
    mask = np.repeat(np.uint8([0, 1, 0, 1]), [length, length, 3, length]).reshape(1, -1)
    np.testing.assert_array_equal(decode_stored(encode_mask(mask), *mask.shape), mask)
    np.testing.assert_array_equal(decode_stored(encode_mask(1 - mask), *mask.shape), 1 - mask)


def test_damaged_text_is_an_error_never_a_wrong_mask() -> None:
    text = coco_mask.encode(np.asfortranarray(box_mask(30, 10, 40, 50)))["counts"]
    for damaged in (b"", text[:-1], text + b"1", text + b"o", b"\x00" + text, b"z" * 30, text + b"\xff"):
        with pytest.raises(ValueError, match="run lengths"):
            validate_run_lengths(parse_coco_text(damaged), HEIGHT * WIDTH)


def test_damaged_stored_runs_are_an_error_never_a_wrong_mask() -> None:
    stored = encode_mask(box_mask(30, 10, 40, 50))
    for damaged in (b"", stored[:-1], stored[:-2], stored[2:], stored + b"\1", stored + b"\1\0"):
        with pytest.raises(ValueError, match="run lengths"):
            decode_stored(damaged, HEIGHT, WIDTH)
    with pytest.raises(ValueError, match="run lengths"):
        decode_stored(stored, HEIGHT, WIDTH - 1)
