"""Masks as run lengths, in a store and in COCO's compressed text."""

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from posenet.annotations.outlines import MAX_STORED_RUN, decode_mask, encode_mask, parse_outline
from tests.helpers.drawn_data import HEIGHT, WIDTH, box_mask


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools")
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (37, 53), (500, 600)])
def test_masks_survive_both_forms(shape: tuple[int, int]) -> None:
    for share in (0.0, 1e-5, 0.02, 0.5, 1.0):
        mask = (np.random.default_rng(5).random(shape) < share).astype(np.uint8)
        decoded = decode_mask(encode_mask(mask), *shape)
        np.testing.assert_array_equal(decoded, mask)
        assert decoded.flags.c_contiguous and decoded.dtype == np.uint8
        text = coco_mask.encode(np.asfortranarray(mask))["counts"]
        runs, _ = parse_outline({"size": list(shape), "counts": text.decode()}, *shape)
        np.testing.assert_array_equal(decode_mask(runs, *shape), mask)


@pytest.mark.parametrize("length", [MAX_STORED_RUN, MAX_STORED_RUN + 1, 2 * MAX_STORED_RUN, 200_000])
def test_runs_may_be_longer_than_a_stored_number(length: int) -> None:
    mask = np.repeat(np.array([0, 1, 0, 1], np.uint8), [length, length, 3, length]).reshape(1, -1)
    for one in (mask, 1 - mask):
        assert encode_mask(one).dtype == np.uint16
        assert length > MAX_STORED_RUN or 0 not in encode_mask(one)[1:], "not longer than it need be"
        np.testing.assert_array_equal(decode_mask(encode_mask(one), *mask.shape), one)


def test_damaged_text_is_never_a_wrong_mask() -> None:
    text = coco_mask.encode(np.asfortranarray(box_mask(30, 10, 40, 50)))["counts"]
    end = next(index for index, byte in enumerate(text) if byte < 80)  # of the first number, which gets a 66th bit
    long = text[:end] + bytes([text[end] + 32]) + b"P" * (12 - end) + b"1" + text[end + 1 :]
    for damaged in (b"", text[:-1], text + b"1", text + b"o", b"\x00" + text, b"z" * 30, text + b"\xff", long):
        outline = {"size": [HEIGHT, WIDTH], "counts": damaged.decode("latin-1")}
        assert parse_outline(outline, HEIGHT, WIDTH) == (None, True)
