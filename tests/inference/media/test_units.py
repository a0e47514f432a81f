"""Units of work of a prediction, and shards of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from posenet.errors import ConfigError
from posenet.inference.media.sources import FileSource
from posenet.inference.media.units import WHOLE, Shard, split_into_units


def sources(kinds: str) -> list[FileSource]:
    return [FileSource("video" if kind == "v" else "image", Path(str(i))) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kinds", "lengths"),
    [("", []), ("iiiiiii", [3, 3, 1]), ("iiivi", [3, 1, 1]), ("vviiiiv", [1, 1, 3, 1, 1]), ("iiiiiiv", [3, 3, 1])],
)
def test_units_are_a_few_images_or_one_video(kinds: str, lengths: list[int]) -> None:
    units = split_into_units(sources(kinds), 3)
    assert [len(unit) for unit in units] == lengths
    assert [index for unit in units for index in unit] == list(range(len(kinds)))


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("num_units", [0, 1, 5, 1000])
def test_shards_are_disjoint_complete_and_of_equal_size(num_units: int, count: int) -> None:
    shards = [Shard(index, count).select(num_units) for index in range(count)]
    assert [number for shard in shards for number in shard] == list(WHOLE.select(num_units))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["3/3", "0/0", "-1/3", "1", "a/b", "1/2/3"])
def test_impossible_shards_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--shard"):
        Shard.parse(text)


def test_the_first_shard_is_0() -> None:
    assert Shard.parse("0/100") == Shard(0, 100)
