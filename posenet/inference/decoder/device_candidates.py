"""Keypoint candidates and limbs of a batch, in PyTorch: on the network's device, or exported together with the network.

The rules, and the differences from ``host_candidates``, are stated in ``candidates``. ``decode_candidates`` finds the
people in the result.
"""

from __future__ import annotations

import functools

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
    prefilter_positions: Tensor  # (3,)
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
        self.register_buffer("prefilter_positions", torch.tensor(PREFILTER_POSITIONS), persistent=False)
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
        maps = maps.float()
        peaks = self._select_peaks(maps[:, self.skeleton.keypoint_channels], sizes)
        part_maps = maps[:, self.skeleton.part_channels]
        pairs, prefilter_score = self._select_pairs(part_maps, peaks)
        return peaks, pairs, self._limb_scores(part_maps, peaks, pairs, prefilter_score)

    def _select_peaks(self, maps: Tensor, sizes: Tensor) -> Tensor:
        """(N, K, h, w) keypoint maps to (N, K, M, 3) x, y, score."""
        height, width = maps.shape[2:]
        rows = torch.arange(height, device=maps.device)
        columns = torch.arange(width, device=maps.device)
        is_inside = (rows[:, None] < sizes[:, :1, None]) & (columns < sizes[:, 1:, None])  # (N, h, w)
        maps = torch.where(is_inside[:, None] & (maps > 0), maps, 0)  # NaN > 0 is false
        padded = F.pad(maps, (1, 1, 1, 1))
        neighbours = [padded[:, :, y : y + height, x : x + width] for y in range(3) for x in range(3)]
        # OpenVINO would copy every slice to another memory format to stack them.
        highest_before = functools.reduce(torch.maximum, neighbours[:4])  # in reading order
        highest_after = functools.reduce(torch.maximum, neighbours[5:])
        # Of adjacent equal cells, only the first is higher than those before it.
        is_peak = (maps >= self.keypoint_threshold) & (maps > highest_before) & (maps >= highest_after)
        score, cell = torch.where(is_peak, maps, 0).flatten(2).topk(self.max_peaks)  # (N, K, M)
        row = cell // width
        column = cell - row * width

        def neighbour(dy: int, dx: int) -> Tensor:
            """(N, K, M) values next to the peaks."""
            index = (row + 1 + dy) * (width + 2) + column + 1 + dx
            return padded.flatten(2).gather(2, index)

        score = score.clamp(max=MAX_VALUE)
        x = column + _peak_offset(neighbour(0, -1), score, neighbour(0, 1))
        y = row + _peak_offset(neighbour(-1, 0), score, neighbour(1, 0))
        return torch.stack([x, y, score], dim=3)

    def _select_pairs(self, maps: Tensor, peaks: Tensor) -> tuple[Tensor, Tensor]:
        """The (N, L, 3) pairs with the best (N, L) prefilter scores, from (N, B, h, w) maps and (N, K, M, 3) peaks."""
        first_keypoint = self.part_ends[:, 0]
        second_keypoint = self.part_ends[:, 1]
        first = peaks[:, first_keypoint, :, None]  # (N, B, M, 1, 3)
        second = peaks[:, second_keypoint, None]  # (N, B, 1, M, 3)
        confidence = (first[..., 2] * second[..., 2]) ** CONFIDENCE_POWER  # (N, B, M, M)
        vector = (second - first)[..., None, :2]
        points = first[..., None, :2] + vector * self.prefilter_positions[:, None]  # (N, B, M, M, 3, 2)
        x, y = points.round().long().unbind(-1)
        part = torch.arange(len(first_keypoint), device=maps.device)[:, None, None, None]
        support = _cell_values(maps, part, x, y).mean(-1)
        score = (support - self.part_threshold) * confidence
        score, index = score.flatten(1).topk(self.max_limbs)  # (N, L)

        # The index counts over (B, M, M): part, first candidate, second candidate.
        count = self.max_peaks
        part = index // count**2
        first_row = first_keypoint[part] * count + index // count % count
        second_row = second_keypoint[part] * count + index % count
        return torch.stack([part, first_row, second_row], dim=2), score

    def _limb_scores(self, maps: Tensor, peaks: Tensor, pairs: Tensor, prefilter_score: Tensor) -> Tensor:
        """(N, L) limb scores of the pairs; 0 where the limb score or the prefilter score is not above 0."""
        part, first_row, second_row = pairs[:, :, :1], pairs[:, :, 1:2], pairs[:, :, 2:]  # (N, L, 1)
        flat = peaks.flatten(1, 2)  # (N, K * M, 3)
        first = flat.gather(1, first_row.expand(-1, -1, 3))  # (N, L, 3)
        second = flat.gather(1, second_row.expand(-1, -1, 3))
        points = first[:, :, None, :2] + (second - first)[:, :, None, :2] * self.sample_positions[:, None]
        x, y = points.unbind(-1)  # (N, L, S)
        samples = _interpolated_values(maps, part, x, y)
        second_lowest = samples.topk(2, dim=2, largest=False).values[:, :, 1]
        support = (samples.mean(2) + second_lowest) / 2
        confidence = (first[..., 2] * second[..., 2]) ** CONFIDENCE_POWER
        score = (support - self.part_threshold) * confidence
        return torch.where(prefilter_score > 0, score.clamp(min=0), 0)


def _peak_offset(before: Tensor, peak: Tensor, after: Tensor) -> Tensor:
    """Offset of a Gaussian's top from the middle one of three adjacent cells; see ``host_candidates``."""
    known = (before > 0) & (after > 0) & (peak > 0)
    before, peak, after = (torch.where(known, value, 1).clamp(max=MAX_VALUE).log() for value in (before, peak, after))
    curvature = 2 * peak - before - after
    offset = (after - before) / (2 * torch.where(curvature > 0, curvature, 1))
    return torch.where(curvature > 0, offset, 0).clamp(-0.5, 0.5)


def _cell_values(maps: Tensor, part: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Clipped values of (N, B, h, w) maps in the cells (x, y) of each part's map, or the nearest cells of the map."""
    height, width = maps.shape[2:]
    cell = (part * height + y.clamp(0, height - 1)) * width + x.clamp(0, width - 1)
    values = maps.flatten(1).gather(1, cell.flatten(1)).reshape(cell.shape)
    return torch.where(values > 0, values, 0).clamp(max=MAX_VALUE)


def _interpolated_values(maps: Tensor, part: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Clipped values at points (x, y) of each part's map, interpolated linearly between the four cells around each."""
    column = x.long()
    row = y.long()
    x = x - column
    y = y - row
    upper = _cell_values(maps, part, column, row) * (1 - x) + _cell_values(maps, part, column + 1, row) * x
    lower = _cell_values(maps, part, column, row + 1) * (1 - x) + _cell_values(maps, part, column + 1, row + 1) * x
    return upper * (1 - y) + lower * y
