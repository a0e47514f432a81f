"""Masks as run lengths, in a store and in COCO's compressed text.

Run lengths count the pixels of a mask down the columns, left to right. The runs alternate between background and
mask; the first one is background and may be 0 pixels long.

**In a store** every run is a 16-bit little-endian number, so that reading needs no decoding. A run longer than
``MAX_STORED_RUN`` is split: 65535, then a run of 0 pixels, then the rest.

**COCO's compressed text** is a quarter smaller and takes ninety times as long to read. Each run is a sequence of
characters. Each character is 48 plus a 6-bit group: bits 0-4 are the next five bits of the number, the lowest first;
bit 5 means that another group follows. Bit 4 of the last group is the sign. From the fourth number on, each is
stored as the difference from the number two positions earlier. The text is read here and not by pycocotools, which
trusts its input and reads past its buffers on damaged text.
"""

from __future__ import annotations

import numpy as np

MAX_STORED_RUN = 2**16 - 1
"""The largest 16-bit number."""


def encode_mask(mask: np.ndarray) -> np.ndarray:
    """(runs,) uint16: the stored run lengths of an (H, W) uint8 mask of 0 and 1."""
    flat = mask.ravel(order="F")
    ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]) + 1, len(flat))
    runs = np.diff(ends, prepend=[0, 0] if flat[0] else [0])
    if runs.max() <= MAX_STORED_RUN:
        return runs.astype("<u2")
    full = runs // MAX_STORED_RUN  # the number of times that each run contains 65535
    stored = np.zeros(len(runs) + 2 * full.sum(), "<u2")
    ends = np.arange(len(runs)) + 2 * full.cumsum()
    stored[ends] = runs - full * MAX_STORED_RUN
    for i in np.flatnonzero(full):
        stored[ends[i] - 2 * full[i] : ends[i] : 2] = MAX_STORED_RUN
    return stored


def parse_coco_text(text: bytes) -> np.ndarray:
    """(runs,) int64 of COCO's compressed text; ``ValueError`` if the text is damaged."""
    groups = np.frombuffer(text, np.uint8) - np.uint8(48)
    ends = np.flatnonzero(groups < 32)
    # Characters below 48 wrap around to more than 63.
    if not len(ends) or ends[-1] != len(groups) - 1 or groups.max() > 63:
        raise ValueError("damaged run lengths")
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if lengths.max() > 8:  # 40 bits are more than any image has pixels
        raise ValueError("damaged run lengths")
    positions = np.arange(len(groups)) - starts.repeat(lengths)
    runs = np.add.reduceat((groups & 31).astype(np.int64) << 5 * positions, starts)
    signs = groups[ends] >> 4
    runs -= signs.astype(np.int64) << 5 * lengths
    runs[1::2].cumsum(out=runs[1::2])
    runs[2::2].cumsum(out=runs[2::2])
    return runs


def validate_run_lengths(runs: np.ndarray, num_pixels: int) -> np.ndarray:
    """Return ``runs`` unchanged; ``ValueError`` unless they cover exactly ``num_pixels`` pixels."""
    if not len(runs) or runs.min() < 0 or runs.max() > num_pixels or runs.sum() != num_pixels:
        raise ValueError("run lengths that do not fill the image")
    return runs


def decode_columns(runs: np.ndarray, height: int, width: int, value: int = 1) -> np.ndarray:
    """Decode valid run lengths to the transposed mask, (W, H) uint8: ``value`` on the mask, 0 elsewhere.

    This form is the fastest, because runs go down the columns.
    """
    values = np.zeros(len(runs), np.uint8)
    values[1::2] = value
    return np.repeat(values, runs).reshape(width, height)


def decode_mask(runs: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W) uint8 mask, C-contiguous, of valid run lengths."""
    return np.ascontiguousarray(decode_columns(runs, height, width).T)
