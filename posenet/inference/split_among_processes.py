"""Splitting inputs into blocks: each process of an evaluation predicts some."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from posenet.inference.media.sources import Source

NUM_BLOCKS = 16
"""The number of blocks is a multiple of this, so that 2, 4, 8 and 16 processes get equal shares."""
MAX_BLOCK_BATCHES = 64
"""Batches in a block at most."""


def split_into_blocks(sources: Sequence[Source], batch_size: int) -> list[list[Source]]:
    """Split sources into numbered blocks whose images may run together: some batches of images, or one video.

    If every process predicts whole blocks, no batch contains images of two processes, so that the people do not depend
    on their number. Images that follow each other are split into ``NUM_BLOCKS`` blocks, or fewer if they are fewer
    batches, or a multiple of it if the blocks would be too long. Long blocks fill the batches better.
    """
    blocks: list[list[Source]] = []
    for is_image, group in itertools.groupby(sources, lambda source: source.kind == "image"):
        members = list(group)
        num_batches = math.ceil(len(members) / batch_size)
        num_blocks = NUM_BLOCKS * math.ceil(num_batches / (NUM_BLOCKS * MAX_BLOCK_BATCHES))
        ends = [num_batches * number // num_blocks * batch_size for number in range(num_blocks + 1)]
        parts = [members[start:end] for start, end in itertools.pairwise(ends)] if is_image else [[m] for m in members]
        blocks += filter(None, parts)
    return [[dataclasses.replace(source, block=number) for source in block] for number, block in enumerate(blocks)]
