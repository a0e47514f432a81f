"""The first half of the decoder on the network's own device: of the maps, only candidates and limbs leave it.

It chooses as ``decode`` does, whole batches at a time and with arrays of fixed size, so that it can be exported
together with the network. ``people.decode_candidates`` does the rest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.errors import ConfigError
from posenet.inference.decoder.people import CEILING, MAX_LIMBS, MAX_PEAKS, PROBES, SAMPLES
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE
from posenet.skeleton import COCO, Skeleton

SMALLEST = (INPUT_MULTIPLE // MAP_STRIDE) ** 2
"""Cells of the smallest map."""


class Candidates(nn.Module):
    """Maps to keypoint candidates and to the pairs of them that body parts may join.

    Unlike ``decode`` it takes a plateau's first cell, refined by its neighbours: for two equal cells that is their
    middle as well, but of a larger plateau it is the upper left corner.

    Args:
        keypoint_threshold, part_threshold: see ``decode``.
        max_peaks: candidates of each keypoint, the strongest first; 1 to 256, the cells of the smallest map.
        max_limbs: pairs of them, those with the best probes and ends first.
        skeleton: what the channels mean.

    Raises:
        ConfigError: ``max_peaks`` out of range.
    """

    def __init__(
        self,
        keypoint_threshold: float = 0.1,
        part_threshold: float = 0.1,
        max_peaks: int = MAX_PEAKS,
        max_limbs: int = MAX_LIMBS,
        skeleton: Skeleton = COCO,
    ) -> None:
        super().__init__()
        if not 1 <= max_peaks <= SMALLEST:
            raise ConfigError(f"{max_peaks} candidates of each keypoint cannot be selected: choose 1 to {SMALLEST}")
        self.keypoint_threshold, self.part_threshold = keypoint_threshold, part_threshold
        self.max_peaks, self.skeleton = max_peaks, skeleton
        self.max_limbs = min(max_limbs, skeleton.num_parts * max_peaks**2)
        for name, values in (("part_ends", skeleton.part_ends), ("probes", PROBES), ("samples", SAMPLES)):
            self.register_buffer(name, torch.from_numpy(values.copy()), persistent=False)

    def forward(self, maps: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Select the candidates of every image of a batch.

        Args:
            maps: (N, C, h, w) output of the network. NaN counts as 0.
            sizes: (N, 2) integers: the rows and columns of cells that show the image; the rest is padding.

        Returns:
            peaks: (N, K, M, 3) float32: x and y in map cells and score, by falling score; score 0 is no candidate.
            pairs: (N, L, 3) int64: body part, and at both its ends the row of the K * M peaks.
            evidence: (N, L) float32: how well the maps support the pair; 0 is no limb.
        """
        maps = maps.float()
        peaks = self._peaks(maps[:, self.skeleton.keypoint_channels], sizes)
        return peaks, *self._limbs(maps[:, self.skeleton.part_channels], peaks)

    def _peaks(self, maps: Tensor, sizes: Tensor) -> Tensor:
        """(N, K, h, w) -> (N, K, M, 3)."""
        height, width = maps.shape[2:]
        rows, columns = (torch.arange(side, device=maps.device) for side in (height, width))
        inside = (rows[:, None] < sizes[:, :1, None]) & (columns < sizes[:, 1:, None])  # (N, h, w)
        maps = torch.where(inside[:, None] & (maps > 0), maps, 0)  # what is NaN is not above 0 either
        sheet = F.pad(maps, (1, 1, 1, 1))
        # A peak is higher than the neighbours before it and not lower than those after it: one cell of equal ones.
        around = [sheet[:, :, y : y + height, x : x + width] for y in range(3) for x in range(3)]
        before, after = _highest(around[:4]), _highest(around[5:])
        peak = (maps >= self.keypoint_threshold) & (maps > before) & (maps >= after)
        score, cell = torch.where(peak, maps, 0).flatten(2).topk(self.max_peaks)  # (N, K, M)
        row = cell // width
        column = cell - row * width

        def beside(step_y: int, step_x: int) -> Tensor:
            """(N, K, M) values of the cells beside the peaks."""
            place = (row + 1 + step_y) * (width + 2) + column + 1 + step_x
            return sheet.flatten(2).gather(2, place)

        score = score.clamp(max=CEILING)
        x = column + _shift(beside(0, -1), score, beside(0, 1))
        y = row + _shift(beside(-1, 0), score, beside(1, 0))
        return torch.stack([x, y, score], dim=3)

    def _limbs(self, maps: Tensor, peaks: Tensor) -> tuple[Tensor, Tensor]:
        """(N, B, h, w) and (N, K, M, 3) -> (N, L, 3) and (N, L)."""
        count = self.max_peaks
        first, second = self.part_ends[:, 0], self.part_ends[:, 1]
        start, stop = peaks[:, first, :, None], peaks[:, second, None]  # (N, B, M, 1 or M, 3)
        sure = (start[..., 2] * stop[..., 2]) ** 1.5  # (N, B, M, M)
        points = start[..., None, :2] + (stop - start)[..., None, :2] * self.probes[:, None]  # (N, B, M, M, 3, 2)
        part = torch.arange(len(first), device=maps.device)[:, None, None, None]
        promise = (_at(maps, part, *points.round().long().unbind(-1)).mean(-1) - self.part_threshold) * sure
        promise, pair = promise.flatten(1).topk(self.max_limbs)  # (N, L)

        part = pair // count**2
        ends = torch.stack([first[part] * count + pair // count % count, second[part] * count + pair % count], dim=2)
        start, stop = (peaks.flatten(1, 2).gather(1, ends[:, :, end, None].expand(-1, -1, 3)) for end in (0, 1))
        points = start[:, :, None, :2] + (stop - start)[:, :, None, :2] * self.samples[:, None]  # (N, L, S, 2)
        samples = _linear(maps, part[:, :, None], *points.unbind(-1))  # (N, L, S)
        support = (samples.mean(2) + samples.topk(2, dim=2, largest=False).values[:, :, 1]) / 2
        evidence = (support - self.part_threshold) * (start[..., 2] * stop[..., 2]) ** 1.5
        return torch.cat([part[:, :, None], ends], dim=2), torch.where(promise > 0, evidence.clamp(min=0), 0)


def _highest(maps: list[Tensor]) -> Tensor:
    return torch.stack(maps).amax(0)


def _shift(before: Tensor, peak: Tensor, after: Tensor) -> Tensor:
    """See ``decode``: where a Gaussian through three neighbouring cells is highest."""
    known = (before > 0) & (after > 0) & (peak > 0)
    before, peak, after = (torch.where(known, value, 1).clamp(max=CEILING).log() for value in (before, peak, after))
    curve = 2 * peak - before - after
    return torch.where(curve > 0, (after - before) / (2 * torch.where(curve > 0, curve, 1)), 0).clamp(-0.5, 0.5)


def _at(maps: Tensor, part: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The values of (N, B, h, w) maps, between 0 and the ceiling, in the cells (x, y) of each ``part``; NaN is 0."""
    height, width = maps.shape[2:]
    cell = (part * height + y.clamp(0, height - 1)) * width + x.clamp(0, width - 1)
    values = maps.flatten(1).gather(1, cell.flatten(1)).reshape(cell.shape)
    return torch.where(values > 0, values, 0).clamp(max=CEILING)


def _linear(maps: Tensor, part: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same, interpolated between the four cells around each point."""
    column, row = x.long(), y.long()
    x, y = x - column, y - row
    upper = _at(maps, part, column, row) * (1 - x) + _at(maps, part, column + 1, row) * x
    lower = _at(maps, part, column, row + 1) * (1 - x) + _at(maps, part, column + 1, row + 1) * x
    return upper * (1 - y) + lower * y
