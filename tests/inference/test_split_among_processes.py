"""Equal shares of the inputs, and none that depends on the number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.devices.ranks import Ranks
from posenet.inference.media.sources import Source
from posenet.inference.pipeline import MAX_BLOCK_BATCHES, split_into_blocks


@pytest.mark.parametrize("num_images", [1000, 20_000])
@pytest.mark.parametrize("world_size", [2, 16])
def test_processes_get_equal_shares_of_images(num_images: int, world_size: int) -> None:
    blocks = split_into_blocks([Source("image", Path(f"{number}.jpg")) for number in range(num_images)], 8)
    assert max(map(len, blocks)) <= 8 * MAX_BLOCK_BATCHES
    ranks = Ranks()
    ranks.world_size = world_size
    for ranks.rank in range(world_size):
        assert abs(sum(map(len, ranks.share(blocks))) - num_images / world_size) <= 8


@pytest.mark.parametrize("world_size", [1, 2, 3, 20])
def test_blocks_are_batches_or_videos_and_shares_join_to_the_whole(world_size: int) -> None:
    kinds = ["image"] * 5 + ["video", "image", "image", "camera"] + ["image"] * 4
    sources = [Source(kind, Path(str(index))) for index, kind in enumerate(kinds)]  # type: ignore[arg-type]
    blocks = split_into_blocks(sources, 4)
    names = [[int(source.name.removeprefix("camera ")) for source in block] for block in blocks]
    assert names == [[0, 1, 2, 3], [4], [5], [6, 7], [8], [9, 10, 11, 12]]
    assert [source.block for block in blocks for source in block] == [0] * 4 + [1, 2, 3, 3, 4] + [5] * 4
    shares = []
    for rank in range(world_size):
        ranks = Ranks()
        ranks.rank, ranks.world_size = rank, world_size
        shares.append(ranks.share(blocks))
    assert [block for part in shares for block in part] == blocks
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
