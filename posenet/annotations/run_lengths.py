"""Masks as run lengths, down the columns and alternating, background first, as COCO has them.

A store keeps them as 16-bit numbers, little-endian, which are read as they lie; a run that needs more goes on after one
of no pixels.

COCO's compressed text is a quarter smaller and takes ninety times as long to read. It holds one number in groups of 5
bits, low first, 48 added, bit 5 set on all but the last group, whose bit 4 is the sign; from the fourth number on it is
the difference to the number two places before. Reading is our own: pycocotools trusts its input and runs past its
buffers on damaged text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pycocotools import mask as coco_mask

LONGEST = 2**16 - 1


def encode(mask: np.ndarray) -> bytes:
    """Stored run lengths of an (H, W) uint8 mask of 0 and 1."""
    flat = mask.ravel(order="F")
    borders = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(borders, prepend=0, append=len(flat))
    return _pack(np.insert(runs, 0, 0) if flat[0] else runs)


def decode(counts: bytes, height: int, width: int) -> np.ndarray:
    """(H, W) uint8 mask, C-contiguous, of stored run lengths.

    Raises:
        ValueError: they are damaged or describe a mask of another size.
    """
    return fill(check(unpack(counts), height * width), height, width)


def unpack(counts: bytes) -> np.ndarray:
    """Stored run lengths, (runs,) uint16; ``ValueError`` where half a number is missing."""
    if len(counts) % 2:
        raise ValueError("damaged run lengths")
    return np.frombuffer(counts, "<u2")


def _pack(runs: np.ndarray) -> bytes:
    whole = runs // LONGEST
    packed = np.zeros(len(runs) + 2 * whole.sum(), "<u2")
    ends = np.arange(len(runs)) + 2 * whole.cumsum()
    packed[ends] = runs - whole * LONGEST
    for i in np.flatnonzero(whole):
        packed[ends[i] - 2 * whole[i] : ends[i] : 2] = LONGEST
    return packed.tobytes()


def polygons_to_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """(H, W) uint8: 1 inside any polygon, a flat list x, y, x, y, ... of at least three corners in pixels.

    It lies column by column, as run lengths go.
    """
    merged = coco_mask.merge(coco_mask.frPyObjects(list(polygons), height, width))
    return columns(check(parse(merged["counts"]), height * width), height, width).T


def parse(counts: bytes) -> np.ndarray:
    """Run lengths (int64) of COCO's compressed text; ``ValueError`` where it is damaged."""
    digits = np.frombuffer(counts, np.uint8) - np.uint8(48)
    ends = np.flatnonzero(digits < 32)
    if not len(ends) or ends[-1] != len(digits) - 1 or digits.max() > 63:  # what lies below 48 has wrapped around
        raise ValueError("damaged run lengths")
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if lengths.max() > 8:
        raise ValueError("damaged run lengths")
    place = np.arange(len(digits)) - starts.repeat(lengths)
    runs = np.add.reduceat((digits & 31).astype(np.int64) << 5 * place, starts)
    runs -= (digits[ends] >> 4).astype(np.int64) << 5 * lengths  # the last group is below 32: bit 4, the sign
    runs[1::2].cumsum(out=runs[1::2])
    runs[2::2].cumsum(out=runs[2::2])
    return runs


def check(runs: np.ndarray, total: int) -> np.ndarray:
    """``runs`` themselves; ``ValueError`` unless they fill ``total`` pixels."""
    if not len(runs) or runs.min() < 0 or runs.max() > total or runs.sum() != total:
        raise ValueError("run lengths that do not fill the image")
    return runs


def columns(runs: np.ndarray, height: int, width: int, value: int = 1) -> np.ndarray:
    """(W, H) uint8, one row for every column of the mask: 0, or ``value`` on the mask.

    Runs go down the columns, so that this is how they fill most quickly.
    """
    values = np.zeros(len(runs), np.uint8)
    values[1::2] = value
    return np.repeat(values, runs).reshape(width, height)


def fill(runs: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W) uint8 mask, C-contiguous, of checked run lengths."""
    return np.ascontiguousarray(columns(runs, height, width).T)
