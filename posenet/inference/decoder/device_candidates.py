"""Keypoint candidates and limbs of a batch, in PyTorch: on the network's device, or exported together with the network.

The rules, and the differences from ``host_candidates``, are stated in ``candidates``. ``decode_candidates`` finds the
people in the result.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.errors import ConfigError
from posenet.inference.decoder.candidates import (
    CONFIDENCE_POWER,
    MAX_LIMBS,
    MAX_PEAKS,
    MAX_VALUE,
    PREFILTER_POSITIONS,
    SAMPLE_POSITIONS,
)
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, InferenceConfig
from posenet.skeleton import COCO, Skeleton

MIN_MAP_CELLS = (INPUT_MULTIPLE // MAP_STRIDE) ** 2
"""Cells of the smallest map. No more peaks can be selected from it."""


class CandidateSelector(nn.Module):
    """Selects keypoint candidates and scored pairs of them from maps. All outputs have a fixed size.

    Args:
        max_peaks: number of candidates of each keypoint, the strongest ones; 1 to 256, else ``ConfigError``.
        max_limbs: number of pairs of candidates, those with the best prefilter scores.

    The other arguments are those of ``decode``.
    """

    part_ends: Tensor  # (B, 2)
    keypoint_channels: Tensor  # (K,)
    part_channels: Tensor  # (B,)
    sample_positions: Tensor  # (S,)

    def __init__(
        self,
        keypoint_threshold: float = InferenceConfig.keypoint_threshold,
        part_threshold: float = InferenceConfig.part_threshold,
        max_peaks: int = MAX_PEAKS,
        max_limbs: int = MAX_LIMBS,
        skeleton: Skeleton = COCO,
    ) -> None:
        super().__init__()
        if not 1 <= max_peaks <= MIN_MAP_CELLS:
            raise ConfigError(f"cannot select {max_peaks} candidates of each keypoint: choose 1 to {MIN_MAP_CELLS}")
        self.keypoint_threshold = keypoint_threshold
        self.part_threshold = part_threshold
        self.max_peaks = max_peaks
        self.max_limbs = min(max_limbs, skeleton.num_parts * max_peaks**2)
        self.skeleton = skeleton
        self.register_buffer("part_ends", torch.tensor(skeleton.part_ends), persistent=False)
        channels = torch.arange(skeleton.num_channels)
        self.register_buffer("keypoint_channels", channels[skeleton.keypoint_channels], persistent=False)
        self.register_buffer("part_channels", channels[skeleton.part_channels], persistent=False)
        self.register_buffer("sample_positions", torch.tensor(SAMPLE_POSITIONS), persistent=False)

    def forward(self, maps: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Select the candidates of every image of a batch.

        Args:
            maps: (N, C, h, w) output of the network.
            sizes: (N, 2) integers: rows and columns of cells that show the image; the rest is padding.

        Returns:
            peaks: (N, K, M, 3) float32: x and y in map cells, and score; highest first. A row with score 0 is no
                candidate.
            pairs: (N, L, 3) int64: body part, and the rows of its two ends among the image's K * M peaks.
            limb_scores: (N, L) float32 of each pair. A pair with score 0 is no limb.
        """
        # This reshape keeps the values. It makes OpenVINO store the maps one after the other. Otherwise OpenVINO
        # converts each slice of the maps, which takes twice as long as the whole selection.
        maps = maps.float().flatten(1).reshape(maps.shape)
        values = _MapValues(maps)
        peaks = self._select_peaks(maps[:, self.skeleton.keypoint_channels], values, sizes)
        pairs, prefilter_score = self._select_pairs(values, peaks)
        return peaks, pairs, self._limb_scores(values, peaks, pairs, prefilter_score)

    def _select_peaks(self, maps: Tensor, values: _MapValues, sizes: Tensor) -> Tensor:
        """(N, K, h, w) keypoint maps to (N, K, M, 3) x, y, score."""
        height, width = maps.shape[2:]
        num_rows = sizes[:, 0, None, None]  # (N, 1, 1)
        num_columns = sizes[:, 1, None, None]
        rows = torch.arange(height, device=maps.device)
        columns = torch.arange(width, device=maps.device)
        is_inside = (rows[:, None] < num_rows) & (columns < num_columns)  # (N, h, w)
        # Cells below the threshold cannot prevent a peak. NaN is below it, because it is not above.
        high = torch.where(is_inside[:, None] & (maps >= self.keypoint_threshold), maps, 0)
        padded = F.pad(high, (1, 1, 1, 1))
        left = padded[..., :-2]
        right = padded[..., 2:]
        highest_of_three = torch.maximum(torch.maximum(left, padded[..., 1:-1]), right)
        # Of adjacent equal cells, only the first in reading order is higher than those before it.
        highest_before = torch.maximum(highest_of_three[:, :, :-2], left[:, :, 1:-1])
        highest_after = torch.maximum(highest_of_three[:, :, 2:], right[:, :, 1:-1])
        is_peak = (high > highest_before) & (high >= highest_after)
        score, cell = torch.where(is_peak, high, 0).flatten(2).topk(self.max_peaks)  # (N, K, M)
        row = cell // width
        column = cell - row * width
        keypoint = self.keypoint_channels[:, None]

        def neighbour(dy: int, dx: int) -> Tensor:
            """(N, K, M) values next to the peaks; 0 outside the image."""
            y = row + dy
            x = column + dx
            is_in_image = (y >= 0) & (x >= 0) & (y < num_rows) & (x < num_columns)
            is_known = is_in_image & (y < height) & (x < width)  # ``sizes`` may be larger than the map
            return torch.where(is_known, values.at(keypoint, torch.where(is_known, y * width + x, 0)), 0)

        score = score.clamp(max=MAX_VALUE)
        x = column + _peak_offset(neighbour(0, -1), score, neighbour(0, 1))
        y = row + _peak_offset(neighbour(-1, 0), score, neighbour(1, 0))
        return torch.stack([x, y, score], dim=3)

    def _select_pairs(self, values: _MapValues, peaks: Tensor) -> tuple[Tensor, Tensor]:
        """The (N, L, 3) pairs with the best (N, L) prefilter scores, from the (N, K, M, 3) peaks."""
        first_keypoint = self.part_ends[:, 0]
        second_keypoint = self.part_ends[:, 1]
        # The last axis is long, and each sample position has tensors of its own: short axes would be slow.
        x, y, score = peaks.unbind(3)  # (N, K, M)
        weight = score**CONFIDENCE_POWER  # a power of each candidate takes less time than one of each pair
        first_x, first_y, first_weight = (value[:, first_keypoint, :, None] for value in (x, y, weight))
        second_x, second_y, second_weight = (value[:, second_keypoint, None] for value in (x, y, weight))
        vector_x = second_x - first_x  # (N, B, M, M)
        vector_y = second_y - first_y
        channel = self.part_channels[:, None, None]
        samples = []
        for position in PREFILTER_POSITIONS.tolist():
            column = (first_x + vector_x * position).round().long()
            row = (first_y + vector_y * position).round().long()
            samples.append(values.at(channel, row * values.width + column))
        support = sum(samples) / len(samples)
        score = (support - self.part_threshold) * (first_weight * second_weight)
        score, index = score.flatten(1).topk(self.max_limbs)  # (N, L)

        # The index counts over (B, M, M): part, first candidate, second candidate.
        count = self.max_peaks
        part = index // count**2
        first_row = first_keypoint[part] * count + index // count % count
        second_row = second_keypoint[part] * count + index % count
        return torch.stack([part, first_row, second_row], dim=2), score

    def _limb_scores(self, values: _MapValues, peaks: Tensor, pairs: Tensor, prefilter_score: Tensor) -> Tensor:
        """(N, L) limb scores of the pairs; 0 where the limb score or the prefilter score is not above 0."""
        part, first_row, second_row = pairs.unbind(2)  # (N, L)
        x, y, score = peaks.flatten(1, 2).unbind(2)  # (N, K * M)
        first_x, first_y, first_score = (value.gather(1, first_row)[:, :, None] for value in (x, y, score))
        second_x, second_y, second_score = (value.gather(1, second_row)[:, :, None] for value in (x, y, score))
        x = first_x + (second_x - first_x) * self.sample_positions  # (N, L, S)
        y = first_y + (second_y - first_y) * self.sample_positions
        samples = values.interpolated(self.part_channels[part][:, :, None], x, y)
        second_lowest = samples.topk(2, dim=2, largest=False).values[:, :, 1]
        support = (samples.mean(2) + second_lowest) / 2
        confidence = (first_score * second_score)[:, :, 0] ** CONFIDENCE_POWER
        score = (support - self.part_threshold) * confidence
        return torch.where(prefilter_score > 0, score.clamp(min=0), 0)


class _MapValues:
    """Clipped values of (N, C, h, w) maps at given cells: between 0 and ``MAX_VALUE``, and 0 for NaN."""

    def __init__(self, maps: Tensor) -> None:
        self.height, self.width = maps.shape[2:]
        self._flat = maps.flatten(1)

    def at(self, channel: Tensor, cell: Tensor) -> Tensor:
        """(N, ...) values in cells, which are counted in reading order. ``channel`` broadcasts with ``cell``."""
        index = channel * (self.height * self.width) + cell
        values = self._flat.gather(1, index.flatten(1)).reshape(index.shape)
        return torch.where(values > 0, values, 0).clamp(max=MAX_VALUE)

    def interpolated(self, channel: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(N, ...) values at points in map cells, interpolated linearly between the four cells around each."""
        column = x.long()
        row = y.long()
        x = x - column
        y = y - row
        cell = row * self.width + column
        right = (column < self.width - 1).long()  # offsets of the next cells; 0 in the last column and row
        below = (row < self.height - 1).long() * self.width
        upper = self.at(channel, cell) * (1 - x) + self.at(channel, cell + right) * x
        lower = self.at(channel, cell + below) * (1 - x) + self.at(channel, cell + below + right) * x
        return upper * (1 - y) + lower * y


def _peak_offset(before: Tensor, peak: Tensor, after: Tensor) -> Tensor:
    """Offset of a Gaussian's top from the middle one of three adjacent cells; see ``host_candidates``."""
    known = (before > 0) & (after > 0) & (peak > 0)
    before, peak, after = (torch.where(known, value, 1).clamp(max=MAX_VALUE).log() for value in (before, peak, after))
    curvature = 2 * peak - before - after
    offset = (after - before) / (2 * torch.where(curvature > 0, curvature, 1))
    return torch.where(curvature > 0, offset, 0).clamp(-0.5, 0.5)
