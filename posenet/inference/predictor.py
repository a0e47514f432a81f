"""From images to people: resize, pad, run the network, average over scales and the mirror image, decode."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenet.checkpoints.weights import load_model
from posenet.devices.background import map_in_background
from posenet.devices.device import select_device
from posenet.devices.precision import Amp, autocast, select_amp
from posenet.errors import ConfigError
from posenet.images.image_files import to_bgr
from posenet.inference.decoder.assembly import decode_candidates
from posenet.inference.decoder.device_candidates import Candidates
from posenet.inference.decoder.host_candidates import decode
from posenet.inference.letterbox import Letterbox
from posenet.inference.person import Person
from posenet.model.fused import FusedNetwork
from posenet.model.preprocessing import prepare
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config
from posenet.skeleton import COCO, Skeleton


class Prepared(NamedTuple):
    """Images that go through the network together.

    Attributes:
        shapes: (height, width) of each image.
        fits: of each image at every scale.
        inputs: for every scale (N, H, W, 3) uint8.
    """

    shapes: list[tuple[int, int]]
    fits: list[list[Letterbox]]
    inputs: list[np.ndarray]


class Answer(NamedTuple):
    """What the network says of ``prepared``: for each image its maps, or arrays for ``decode_candidates``.

    ``fits`` are those of the scale that the maps have.
    """

    prepared: Prepared
    fits: list[Letterbox]
    found: list[tuple[np.ndarray, ...]]


class Predictor:
    """A network and all it takes to find people in images.

    The network is put into evaluation mode and used as it is, so that one that is being trained can be watched;
    ``FusedNetwork`` makes a faster copy of one that is not. What is found in an image does not depend on the others of
    its batch.

    While the network looks at some images, other threads prepare the next and decode the last.

    Args:
        model: has ``heatmaps``: (N, 3, H, W) float32 BGR 0-1 to (N, C, H/4, W/4). One with a true attribute
            ``channels_last`` gets its images in that layout.
        height: images are resized to this height.
        scales: the maps are averaged over these multiples of ``height``.
        flip: average with the maps of the mirrored image as well.
        max_height, max_width: the network's input is held below these.
        batch_size: images that go through the network together.
        keypoint_threshold, part_threshold: see ``decode``.
        device: where to run; None is where the model is.
        amp: precision of the network; a deployed one has its own.
        select: where candidates are selected: on the "device", so that only they and not the maps are copied from it,
            or on the "host". None is the faster: the device, unless that is the CPU.
        skeleton: what the channels mean.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        height: int = 512,
        scales: Sequence[float] = (1.0,),
        flip: bool = False,
        max_height: int = 2600,
        max_width: int = 3800,
        batch_size: int = 4,
        keypoint_threshold: float = 0.1,
        part_threshold: float = 0.1,
        device: torch.device | str | None = None,
        amp: Amp = "off",
        select: Literal["device", "host"] | None = None,
        skeleton: Skeleton = COCO,
    ) -> None:
        self.device = (
            next((p.device for p in model.parameters()), torch.device("cpu"))
            if device is None
            else torch.device(device)
        )
        self.model = model.to(self.device).eval()
        self.height, self.scales, self.flip, self.batch_size = height, tuple(scales), flip, batch_size
        # The padded image is to stay below the limits too.
        self.limit = tuple(side // INPUT_MULTIPLE * INPUT_MULTIPLE for side in (max_height, max_width))
        self.keypoint_threshold, self.part_threshold = keypoint_threshold, part_threshold
        self.amp, self.skeleton = amp, skeleton
        self._flip_channels = torch.from_numpy(skeleton.flip_channels).to(self.device)
        on_device = self.device.type != "cpu" if select is None else select == "device"
        self._candidates = (
            Candidates(keypoint_threshold, part_threshold, skeleton=skeleton).to(self.device) if on_device else None
        )

    @classmethod
    def from_config(
        cls,
        model: nn.Module,
        config: Config,
        *,
        device: torch.device | str | None = None,
        amp: Amp = "off",
        **overrides: Any,
    ) -> Predictor:
        """A predictor as ``config.inference`` says, but for ``overrides``, which are keys of that section.

        Raises:
            ConfigError: an override out of range.
        """
        try:
            settings = dataclasses.replace(config.inference, **overrides)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return cls(model, device=device, amp=amp, skeleton=config.model.skeleton, **dataclasses.asdict(settings))

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        config: Config | None = None,
        device: str = "auto",
        amp: Amp | Literal["auto"] = "auto",
        **overrides: Any,
    ) -> Predictor:
        """A predictor from a checkpoint, ours or a published one; the network is deployed.

        Args:
            config: stands in for the configuration that the checkpoint carries.
            amp: precision of the network; "auto" is the fastest that is as accurate on the device.
            overrides: keys of the configuration's ``inference`` section.

        Raises:
            CheckpointError: a damaged file, or one that does not fit the network.
            ConfigError: an unknown device, or an override out of range.
        """
        model, config = load_model(path, config)
        where = select_device(device)
        return cls.from_config(FusedNetwork(model, select_amp(where, amp)), config, device=where, **overrides)

    def __call__(self, image: np.ndarray) -> list[Person]:
        """People in an image, by falling score, keypoints in pixels of the image.

        Args:
            image: (H, W, 3) BGR; grey, BGRA and 16-bit images are converted.

        Raises:
            DataError: an array that is not an image.
        """
        return self.batch([image])[0]

    def batch(self, images: Sequence[np.ndarray]) -> list[list[Person]]:
        """The same for several images of any sizes; those that need equal inputs run together."""
        images = [to_bgr(image) for image in images]
        groups: dict[tuple, list[int]] = {}
        for index, image in enumerate(images):
            groups.setdefault(self._canvases(image), []).append(index)
        order = list(itertools.chain.from_iterable(groups.values()))
        people = dict(zip(order, self.stream(images[index] for index in order)))
        return [people[index] for index in range(len(images))]

    def stream(self, images: Iterable[np.ndarray]) -> Iterator[list[Person]]:
        """The same for any number of images, in their order, of which only a few are held at a time.

        Neighbours that need equal inputs run together: images sorted by shape make full batches.
        """
        prepared = map_in_background(self._prepare, self._chunks(map(to_bgr, images)))
        for people in map_in_background(self._decode, map(self._look, prepared)):
            yield from people

    def _chunks(self, images: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Neighbours that need equal inputs, at most ``batch_size`` of them."""
        for _, alike in itertools.groupby(images, self._canvases):
            while chunk := list(itertools.islice(alike, self.batch_size)):
                yield chunk

    def _canvases(self, image: np.ndarray) -> tuple[tuple[int, int], ...]:
        return tuple(self.fit(image.shape[:2], scale).canvas for scale in self.scales)

    def fit(self, shape: tuple[int, int], scale: float = 1.0) -> Letterbox:
        """The network input for an image of (height, width) ``shape`` at ``scale`` times the set height."""
        factor = min(self.height * scale / shape[0], *(limit / side for limit, side in zip(self.limit, shape)))
        size = tuple(max(1, round(side * factor)) for side in shape)
        return Letterbox(size, tuple(-(-side // INPUT_MULTIPLE) * INPUT_MULTIPLE for side in size))

    def _prepare(self, images: list[np.ndarray]) -> Prepared:
        """Resize and pad images."""
        shapes = [image.shape[:2] for image in images]
        fits = [[self.fit(shape, scale) for scale in self.scales] for shape in shapes]
        inputs = [np.stack([own[i].place(image) for image, own in zip(images, fits)]) for i in range(len(self.scales))]
        return Prepared(shapes, fits, inputs)

    @torch.inference_mode()
    def _look(self, prepared: Prepared) -> Answer:
        """Run the network, and select candidates if that is the device's part."""
        maps, fits = self._maps(prepared)
        if self._candidates is None:
            return Answer(prepared, fits, [(own,) for own in maps.cpu().numpy()])
        cells = torch.tensor([fit.cells for fit in fits], device=self.device)
        return Answer(prepared, fits, list(zip(*(array.cpu().numpy() for array in self._candidates(maps, cells)))))

    def _maps(self, prepared: Prepared) -> tuple[Tensor, list[Letterbox]]:
        """Averaged maps (N, C, h, w) in the geometry of the largest scale, and the fits of that scale."""
        largest = max(range(len(self.scales)), key=self.scales.__getitem__)
        reference = [own[largest] for own in prepared.fits]
        total = None
        for i, inputs in enumerate(prepared.inputs):
            maps = self.maps_of(inputs)
            if i != largest:
                maps = _align(maps, [own[i] for own in prepared.fits], reference)
            total = maps if total is None else total + maps
        return total / len(self.scales) if len(self.scales) > 1 else total, reference

    @torch.inference_mode()
    def maps_of(self, pictures: np.ndarray) -> Tensor:
        """The network's answer to images that are as large as its input, without a look at ``scales``.

        Args:
            images: (N, H, W, 3) BGR uint8; see ``Fit.place``.

        Returns:
            (N, C, H/4, W/4) float32 on the device, averaged with those of the mirrored images if ``flip``.
        """
        inputs = prepare(torch.from_numpy(pictures).to(self.device), getattr(self.model, "channels_last", False))
        with autocast(self.device, self.amp):
            maps = self.model.heatmaps(inputs).float()
            if self.flip:
                # The padded image is mirrored as a whole: its width is a multiple of the maps' stride.
                mirrored = self.model.heatmaps(inputs.flip(-1)).float()
                maps = (maps + mirrored[:, self._flip_channels].flip(-1)) / 2
        return maps

    def _decode(self, answer: Answer) -> list[list[Person]]:
        """People of every image, in its own pixels."""
        return [
            self._people(found, fit, shape)
            for found, fit, shape in zip(answer.found, answer.fits, answer.prepared.shapes)
        ]

    def _people(self, found: tuple[np.ndarray, ...], fit: Letterbox, shape: tuple[int, int]) -> list[Person]:
        """Decode the part of the maps that shows the image, and go back to its (height, width) ``shape``."""
        if self._candidates is None:
            rows, columns = fit.cells
            people = decode(
                found[0][:, :rows, :columns],
                stride=MAP_STRIDE,
                skeleton=self.skeleton,
                keypoint_threshold=self.keypoint_threshold,
                part_threshold=self.part_threshold,
            )
        else:
            people = decode_candidates(*found, stride=MAP_STRIDE, skeleton=self.skeleton)
        fit.back(people, shape)
        return people


def _align(maps: Tensor, current: list[Letterbox], reference: list[Letterbox]) -> Tensor:
    """Resample (N, C, h, w) maps of one scale to the cells of another.

    Resizing maps x to (x + 0.5) s - 0.5, in pixels and, as the stride is the same, in cells. The padding of the
    two scales differs, so that the sizes of the resized images, not of the maps, give s.
    """
    (height, width), (rows, columns) = maps.shape[2:], (side // MAP_STRIDE for side in reference[0].canvas)
    matrix = maps.new_zeros(len(maps), 2, 3)
    for i, (own, other) in enumerate(zip(current, reference)):
        matrix[i, 0, 0] = own.size[1] / other.size[1] * columns / width
        matrix[i, 1, 1] = own.size[0] / other.size[0] * rows / height
    # In PyTorch's coordinates, which run from -1 to 1 between the maps' outer edges, the left edges coincide.
    matrix[:, :, 2] = matrix[:, :, :2].sum(2) - 1
    grid = F.affine_grid(matrix, [len(maps), 1, rows, columns], align_corners=False)
    return F.grid_sample(maps, grid, mode="bicubic", padding_mode="border", align_corners=False)
