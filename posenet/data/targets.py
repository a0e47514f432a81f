"""Target maps, the heatmaps to learn, rendered from keypoints: a whole batch at once, on the device that it is on."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.settings import MAP_STRIDE, Config, TargetsConfig
from posenet.skeleton import Skeleton

PART_MARGIN = 4.0
"""Distance in pixels of the network input, one map cell, by which the rectangle of a body part extends beyond its two
keypoints: a part along an axis has a width, too."""
THRESHOLD = 0.015
"""Where a Gaussian falls to this, the square of a keypoint ends, and a body-part response becomes ``PART_FLOOR``."""
PART_FLOOR = 0.01
"""Response in the rest of a body part's rectangle: just foreground for the loss (``loss.POSITIVE_THRESHOLD``)."""


class TargetRenderer(nn.Module):
    """Renders joints and person masks to the (N, C, h, w) maps that the network should predict.

    The targets are those of Li, Su and Wang, "Simple Pose", AAAI 2020 (arXiv 1911.10529). All lengths are pixels of the
    network input. With the map stride of 4, map cell i is centred on input pixel c(i) = 4·i + 1.5. ``round`` rounds
    half to even.

    Keypoint map, for a labelled keypoint at (u, v):

        g(x, y) = exp(-((c(x) - u)² + (c(y) - v)²) / (2 · keypoint_sigma²))

    in the square of cells round(u / 4) ± n, round(v / 4) ± n, and 0 elsewhere. The reach n is where the Gaussian falls
    to the THRESHOLD, in cells, rounded up: n = ⌈√(-2 · keypoint_sigma² · ln(THRESHOLD)) / 4⌉. Several people are
    combined by the maximum.

    These are the maps of the finest scale; ``loss.FocalL2Loss`` averages 2 x 2 of their cells for each coarser one.

    Body-part map, for a part with two labelled ends at different positions a and b:

        r(x, y) = exp(-d² / (2 · part_sigma²)), and PART_FLOOR where that is at most THRESHOLD,
        d = distance of (c(x), c(y)) to the infinite line through a and b

    in the rectangle of cells round((min(a, b) - PART_MARGIN) / 4) to round((max(a, b) + PART_MARGIN) / 4) on each axis,
    and 0 elsewhere. Several people are combined by the mean over all rectangles that cover the cell.

    There are two implementations. On a CPU, ``sparse_keypoints`` and ``sparse_parts`` compute only the cells of these
    squares and rectangles: for 4 to 8 people in a ninth of the time or less. On an accelerator the host would have to
    wait for their number. There, and under ``torch.compile``, ``dense_keypoints`` and ``dense_parts`` compute all
    cells, with shapes that depend only on those of the joints: one graph, whose kernels store nothing for each person.
    Where they are not compiled, people are rendered in groups, so that the memory has a bound.
    """

    MAX_CELLS = 2**26
    """A group has at most this number of cells, unless one person has more. Temporary tensors then take 0.6 GB."""
    part_ends: Tensor

    def __init__(self, settings: TargetsConfig, skeleton: Skeleton) -> None:
        super().__init__()
        self.settings = settings
        self.skeleton = skeleton
        reach = math.sqrt(-2 * settings.keypoint_sigma**2 * math.log(THRESHOLD))
        self.reach = math.ceil(reach / MAP_STRIDE)
        self.register_buffer("part_ends", torch.from_numpy(skeleton.part_ends), persistent=False)

    @classmethod
    def from_config(cls, config: Config) -> "TargetRenderer":
        return cls(config.targets, config.model.skeleton)

    @torch.no_grad()
    def forward(self, joints: Tensor, person_mask: Tensor) -> Tensor:
        """Render the target maps of a batch.

        Args:
            joints: (N, P, K, 3): x, y in network-input pixels, and visibility, where > 0 means labelled. Rows of zeros
                pad samples with fewer people.
            person_mask: (N, h, w) share of each cell that people cover, 0-1.

        Returns:
            (N, C, h, w) float32 in [0, 1]: the maps of the body parts and of the keypoints; the person mask, eroded by
            3 x 3 cells; and the maximum over the keypoint maps.
        """
        if joints.ndim != 4 or joints.shape[2:] != (self.skeleton.num_keypoints, 3):
            raise ValueError(f"joints must be (N, P, {self.skeleton.num_keypoints}, 3), not {tuple(joints.shape)}")
        joints = joints.float()
        person_mask = person_mask.float()
        height, width = person_mask.shape[1:]
        render_parts, render_keypoints = self.sparse_parts, self.sparse_keypoints
        if joints.device.type != "cpu" or torch.compiler.is_compiling():
            render_parts, render_keypoints = self.dense_parts, self.dense_keypoints
        part_maps = render_parts(joints, height, width)  # (N, B, h, w)
        keypoint_maps = render_keypoints(joints, height, width)  # (N, K, h, w)
        eroded_mask = -F.max_pool2d(-person_mask[:, None], kernel_size=3, stride=1, padding=1)  # (N, 1, h, w)
        foreground = keypoint_maps.amax(1, keepdim=True)  # (N, 1, h, w)
        return torch.cat([part_maps, keypoint_maps, eroded_mask, foreground], 1).clamp_(0, 1)

    def sparse_keypoints(self, joints: Tensor, height: int, width: int) -> Tensor:
        """(N, K, h, w) keypoint maps. M is the number of labelled keypoints, S = 2·n + 1 the side of a square."""
        num_samples, _, num_keypoints, _ = joints.shape
        sample, person, keypoint = torch.nonzero(joints[..., 2] > 0, as_tuple=True)  # (M,) each
        xy = joints[sample, person, keypoint, :2]  # (M, 2)
        offsets = torch.arange(-self.reach, self.reach + 1, device=joints.device)  # (S,)
        cells = torch.round(xy / MAP_STRIDE).long()[:, :, None] + offsets  # (M, 2, S), columns and rows
        distance = _cell_centre(cells) - xy[:, :, None]  # (M, 2, S)
        # A two-dimensional Gaussian is the product of two one-dimensional ones.
        gaussian = _gaussian(distance, self.settings.keypoint_sigma)  # (M, 2, S)
        # Cells outside the map write 0 to a cell at its border, which changes no maximum.
        gaussian *= (cells >= 0) & (cells < cells.new_tensor([width, height])[:, None])
        column = cells[:, 0].clamp(0, width - 1)  # (M, S)
        row = cells[:, 1].clamp(0, height - 1)  # (M, S)
        first_row = (sample * num_keypoints + keypoint) * height  # (M,), among the rows of all maps
        index = ((first_row[:, None] + row) * width)[:, :, None] + column[:, None, :]  # (M, S, S)
        value = gaussian[:, 1, :, None] * gaussian[:, 0, None, :]  # (M, S, S)
        maps = joints.new_zeros(num_samples * num_keypoints * height * width)
        maps.scatter_reduce_(0, index.flatten(), value.flatten(), "amax")
        return maps.view(num_samples, num_keypoints, height, width)

    def sparse_parts(self, joints: Tensor, height: int, width: int) -> Tensor:
        """(N, B, h, w) body-part maps. R is the number of rectangles, M the number of all their cells together."""
        num_samples = len(joints)
        num_parts = len(self.part_ends)
        first, second, low, high, has_map = self._rectangles(joints)
        sample, _, part = torch.nonzero(has_map, as_tuple=True)  # (R,) each
        first, second, low, high = (values[has_map] for values in (first, second, low, high))  # (R, 2) each

        # The corners are clamped as floats: far keypoints do not fit into integers.
        limit = joints.new_tensor([width, height])
        low = low.clamp(min=0).minimum(limit).long()
        high = high.clamp(min=-1).minimum(limit - 1).long()
        sides = (high - low + 1).clamp(min=0)  # (R, 2); 0 where the rectangle is outside the map

        # One flat list of the cells of all rectangles, rectangle by rectangle and row by row.
        counts = sides.prod(1)  # (R,)
        rectangle = torch.repeat_interleave(torch.arange(len(counts), device=joints.device), counts)  # (M,)
        first_cell = counts.cumsum(0) - counts  # (R,), where each rectangle starts in the list
        within = torch.arange(len(rectangle), device=joints.device) - first_cell[rectangle]  # (M,)
        columns = sides[rectangle, 0]  # (M,)
        cells = low[rectangle] + torch.stack([within % columns, within // columns], 1)  # (M, 2)

        direction = F.normalize(second - first, dim=1)  # (R, 2)
        offset = _cell_centre(cells) - first[rectangle]  # (M, 2)
        distance = offset[:, 0] * direction[rectangle, 1] - offset[:, 1] * direction[rectangle, 0]  # (M,), signed
        value = _gaussian(distance, self.settings.part_sigma)  # (M,)
        value = torch.where(value <= THRESHOLD, PART_FLOOR, value)

        # The sum of the values of every cell, and the number of rectangles that cover it.
        index = ((sample * num_parts + part)[rectangle] * height + cells[:, 1]) * width + cells[:, 0]  # (M,)
        totals = joints.new_zeros(2, num_samples * num_parts * height * width)
        totals.index_add_(1, index, torch.stack([value, torch.ones_like(value)]))
        return (totals[0] / totals[1].clamp_(min=1)).view(num_samples, num_parts, height, width)

    def dense_keypoints(self, joints: Tensor, height: int, width: int) -> Tensor:
        """(N, K, h, w) keypoint maps."""
        labelled = joints[..., 2] > 0  # (N, P, K)
        columns = self._along_axis(joints[..., 0], width)  # (N, P, K, w)
        rows = torch.where(labelled[..., None], self._along_axis(joints[..., 1], height), 0)  # (N, P, K, h)
        maps = joints.new_zeros(len(joints), joints.shape[2], height, width)
        for people in self._groups(maps, joints.shape[1]):
            values = rows[:, people, :, :, None] * columns[:, people, :, None, :]  # (N, P', K, h, w)
            maps = torch.maximum(maps, values.amax(1))
        return maps

    def dense_parts(self, joints: Tensor, height: int, width: int) -> Tensor:
        """(N, B, h, w) body-part maps."""
        first, second, low, high, has_map = self._rectangles(joints)
        column = torch.arange(width, device=joints.device)
        row = torch.arange(height, device=joints.device)
        columns = (column >= low[..., :1]) & (column <= high[..., :1])  # (N, P, B, w)
        rows = (row >= low[..., 1:]) & (row <= high[..., 1:]) & has_map[..., None]  # (N, P, B, h)

        # The signed distance to the line, in units of √2 · part_sigma, is the sum of a term of the column and one of
        # the row.
        direction = F.normalize(second - first, dim=-1) / (math.sqrt(2) * self.settings.part_sigma)  # (N, P, B, 2)
        column_terms = (_cell_centre(column) - first[..., :1]) * direction[..., 1:]  # (N, P, B, w)
        row_terms = (first[..., 1:] - _cell_centre(row)) * direction[..., :1]  # (N, P, B, h)

        totals = joints.new_zeros(len(joints), len(self.part_ends), height, width)
        counts = torch.zeros_like(totals)
        for people in self._groups(totals, joints.shape[1]):
            # In place, because these tensors are by far the largest.
            value = column_terms[:, people, :, None, :] + row_terms[:, people, :, :, None]  # (N, P', B, h, w)
            value.square_().neg_().exp_()  # of the distance to the line
            value.masked_fill_(value <= THRESHOLD, PART_FLOOR)
            inside = columns[:, people, :, None, :] & rows[:, people, :, :, None]  # (N, P', B, h, w)
            totals += value.masked_fill_(~inside, 0).sum(1)
            counts += inside.sum(1)
            del value  # before the memory for the next group is allocated
        return totals / counts.clamp(min=1)

    def _rectangles(self, joints: Tensor) -> tuple[Tensor, ...]:
        """The rectangles of body parts: both ends, both corner cells as floats, inclusive, and whether there is one.

        Shapes are (N, P, B, 2), and (N, P, B) for the last; x or columns come first.
        """
        first, second = joints[:, :, self.part_ends].unbind(3)  # (N, P, B, 3) each
        labelled = (first[..., 2] > 0) & (second[..., 2] > 0)
        first, second = first[..., :2], second[..., :2]
        low = torch.round((torch.minimum(first, second) - PART_MARGIN) / MAP_STRIDE)
        high = torch.round((torch.maximum(first, second) + PART_MARGIN) / MAP_STRIDE)
        return first, second, low, high, labelled & (first != second).any(-1)

    def _along_axis(self, position: Tensor, length: int) -> Tensor:
        """(..., length): the Gaussian of the (...) positions along one axis, 0 beyond its reach."""
        cell = torch.arange(length, device=position.device)
        nearest = torch.round(position / MAP_STRIDE)[..., None]
        within_reach = (cell >= nearest - self.reach) & (cell <= nearest + self.reach)
        value = _gaussian(_cell_centre(cell) - position[..., None], self.settings.keypoint_sigma)
        return torch.where(within_reach, value, 0)

    def _groups(self, maps: Tensor, num_people: int) -> list[slice]:
        """The people in groups of at most ``MAX_CELLS`` cells, given the (N, C, h, w) maps of one person."""
        if torch.compiler.is_compiling():
            return [slice(None)]  # the kernels store no cells of single people
        size = max(1, self.MAX_CELLS // maps.numel())
        return [slice(start, start + size) for start in range(0, num_people, size)]


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    return torch.exp(-(distance**2) / (2 * sigma**2))


def _cell_centre(cells: Tensor) -> Tensor:
    """The input pixels that map cells are centred on."""
    return cells * MAP_STRIDE + (MAP_STRIDE - 1) / 2
