"""Target maps rendered from keypoints, for a whole batch at once, on whatever device the batch is on."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.settings import Config
from posenet.skeleton import COCO, Skeleton


class TargetRenderer(nn.Module):
    """Joints and person mask to the (N, C, h, w) maps the network should answer with.

    All lengths are pixels of the network input. Cell i of a map is centred on input pixel
    ``stride * i + (stride - 1) / 2``. Only the cells that a keypoint or part reaches are computed, so
    memory and time follow the people, not people times channels times cells.

    Args:
        keypoint_sigma: standard deviation of a keypoint's Gaussian.
        part_sigma: standard deviation across a body part.
        part_margin: how far a part's rectangle reaches beyond its two keypoints.
        threshold: keypoint responses end here; part responses at or below become ``part_floor``.
    """

    def __init__(
        self,
        keypoint_sigma: float = 9.0,
        part_sigma: float = 7.0,
        part_margin: float = 4.0,
        threshold: float = 0.015,
        part_floor: float = 0.01,
        stride: int = 4,
        skeleton: Skeleton = COCO,
    ) -> None:
        super().__init__()
        self.keypoint_sigma, self.part_sigma, self.part_margin = keypoint_sigma, part_sigma, part_margin
        self.threshold, self.part_floor, self.stride, self.skeleton = threshold, part_floor, stride, skeleton
        self.reach = math.ceil(math.sqrt(-2 * keypoint_sigma**2 * math.log(threshold)) / stride)
        self.register_buffer("part_ends", torch.from_numpy(skeleton.part_ends), persistent=False)

    @classmethod
    def from_config(cls, config: Config) -> TargetRenderer:
        t = config.targets
        return cls(
            t.keypoint_sigma, t.part_sigma, t.part_margin, t.threshold, t.part_floor, skeleton=config.model.skeleton
        )

    @torch.no_grad()
    def forward(self, joints: Tensor, person_mask: Tensor) -> Tensor:
        """Render the targets.

        Args:
            joints: (N, P, K, 3) x, y in network-input pixels and visibility; > 0 means labelled. Rows of
                zeros pad images with fewer people.
            person_mask: (N, h, w) share of each cell that people cover, 0-1.

        Returns:
            (N, C, h, w) float32 in [0, 1]: body parts, keypoints, eroded person mask, keypoint foreground.
        """
        if joints.ndim != 4 or joints.shape[2:] != (self.skeleton.num_keypoints, 3):
            raise ValueError(f"joints must be (N, P, {self.skeleton.num_keypoints}, 3), not {tuple(joints.shape)}")
        if person_mask.ndim != 3 or len(person_mask) != len(joints):
            raise ValueError(f"person_mask must be ({len(joints)}, h, w), not {tuple(person_mask.shape)}")
        joints, person_mask = joints.float(), person_mask.float()
        height, width = person_mask.shape[1:]
        keypoints = self._keypoint_maps(joints, height, width)
        parts = self._part_maps(joints, height, width)
        mask = -F.max_pool2d(-person_mask[:, None], kernel_size=3, stride=1, padding=1)
        return torch.cat([parts, keypoints, mask, keypoints.amax(1, keepdim=True)], 1).clamp_(0, 1)

    def _keypoint_maps(self, joints: Tensor, height: int, width: int) -> Tensor:
        """(N, K, h, w): a Gaussian in a square of cells about each keypoint; people combine by maximum."""
        n, _, k, _ = joints.shape
        sample, person, keypoint = torch.nonzero(joints[..., 2] > 0, as_tuple=True)
        xy = joints[sample, person, keypoint, :2]
        steps = torch.arange(-self.reach, self.reach + 1, device=joints.device)
        cells = torch.round(xy / self.stride).long()[:, :, None] + steps  # (M, 2, 15)
        distance = self._centre(cells) - xy[:, :, None]
        profile = torch.exp(-(distance**2) / (2 * self.keypoint_sigma**2))
        profile *= (cells >= 0) & (cells < cells.new_tensor([width, height])[:, None])
        column, row = cells[:, 0].clamp(0, width - 1), cells[:, 1].clamp(0, height - 1)
        start = (sample * k + keypoint) * height
        index = ((start[:, None] + row) * width)[:, :, None] + column[:, None, :]  # (M, 15, 15)
        value = profile[:, 1, :, None] * profile[:, 0, None, :]
        maps = joints.new_zeros(n * k * height * width)
        maps.scatter_reduce_(0, index.flatten(), value.flatten(), "amax")
        return maps.view(n, k, height, width)

    def _part_maps(self, joints: Tensor, height: int, width: int) -> Tensor:
        """(N, B, h, w): a ridge along each part; people combine by the mean over those that cover a cell."""
        n, b = len(joints), len(self.part_ends)
        ends = joints[:, :, self.part_ends]  # (N, P, B, 2, 3)
        drawn = (ends[..., 2] > 0).all(-1) & (ends[..., 0, :2] != ends[..., 1, :2]).any(-1)
        sample, person, part = torch.nonzero(drawn, as_tuple=True)
        first, second = ends[sample, person, part, :, :2].unbind(1)
        # Clamped as floats: far away keypoints do not fit into integers.
        limit = joints.new_tensor([width, height])
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        low = torch.round((low - self.part_margin) / self.stride).clamp(min=0).minimum(limit).long()
        high = torch.round((high + self.part_margin) / self.stride).clamp(min=-1).minimum(limit - 1).long()
        sides = (high - low + 1).clamp(min=0)

        # One flat list of all cells of all rectangles: `owner` is the part, `place` the cell within it.
        counts = sides.prod(1)
        owner = torch.repeat_interleave(torch.arange(len(counts), device=joints.device), counts)
        place = torch.arange(len(owner), device=joints.device) - (counts.cumsum(0) - counts)[owner]
        columns = sides[owner, 0]
        cells = low[owner] + torch.stack([place % columns, place // columns], 1)  # (M, 2)

        direction = F.normalize(second - first, dim=1)
        offset = self._centre(cells) - first[owner]
        distance = offset[:, 0] * direction[owner, 1] - offset[:, 1] * direction[owner, 0]
        value = torch.exp(-(distance**2) / (2 * self.part_sigma**2))
        value = torch.where(value <= self.threshold, self.part_floor, value)
        index = ((sample * b + part)[owner] * height + cells[:, 1]) * width + cells[:, 0]
        total = joints.new_zeros(2, n * b * height * width)
        total.index_add_(1, index, torch.stack([value, torch.ones_like(value)]))
        return (total[0] / total[1].clamp_(min=1)).view(n, b, height, width)

    def _centre(self, cells: Tensor) -> Tensor:
        return cells * self.stride + (self.stride - 1) / 2
