"""Network, target renderer and loss as one module, which DataParallel and DistributedDataParallel wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posenet.data.targets import TargetRenderer
from posenet.devices.precision import Amp, autocast
from posenet.model.posenet import PoseNet
from posenet.model.preprocessing import images_to_input
from posenet.training.loss import FocalL2Loss
from posenet.training.teacher import Teacher


class ModelWithLoss(nn.Module):
    """Renders the targets of a uint8 batch and computes the loss of every image, on the device of the batch.

    Only the network runs in the precision ``amp``; targets and loss are float32. ``channels_last`` is the memory layout
    of the network. In training mode, the maps of a ``teacher`` join the targets.
    """

    def __init__(
        self,
        network: PoseNet,
        renderer: TargetRenderer,
        loss: FocalL2Loss,
        amp: Amp,
        channels_last: bool,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.renderer = renderer
        self.loss = loss
        self.amp = amp
        self.channels_last = channels_last
        self.teacher = teacher
        self._compiled: Callable[..., Tensor] | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether targets, network and loss are one compiled graph."""
        return self._compiled is not None

    def compile(self, **options: Any) -> None:
        """Make ``torch.compile`` compile targets, network and loss in training; ``options`` are its arguments.

        All batches have one graph if they have the same images' shape and places for at least two people. Evaluation
        would be a second graph, which takes longer to compile than it saves.
        """
        self._compiled = torch.compile(self._loss_terms, **options)

    def forward(
        self,
        images: Tensor,
        joints: Tensor,
        person_mask: Tensor,
        mask_miss: Tensor,
        supervised: Tensor | None = None,
    ) -> Tensor:
        """The contribution of every stack and scale to the loss of every image; their sum is its loss.

        Args:
            images: (N, H, W, 3) BGR uint8.
            joints: (N, P, K, 3) float32: x and y in network-input pixels, and visibility.
            person_mask: (N, H/4, W/4) uint8, 255 where people are.
            mask_miss: (N, H/4, W/4) uint8, 255 where the loss supervises.
            supervised: (N, C) uint8, 1 for the channels that the loss supervises; None means all.

        Returns:
            (N, stacks, scales) float32.
        """
        if self._compiled is None or not self.training:
            return self._loss_terms(images, joints, person_mask, mask_miss, supervised)
        if self.teacher is not None:
            self.teacher.network_on(images.device)  # a graph cannot contain the copying
        # The graph does not depend on the number of people, nor on whether all channels are supervised.
        torch._dynamo.maybe_mark_dynamic(joints, 1)
        if supervised is None:
            supervised = images.new_ones(len(images), self.loss.num_channels)
        # By default, DistributedDataParallel cuts the graph at each bucket of gradients. Compiling many graphs takes
        # longer, and no kernel can join operations of two of them.
        with torch._dynamo.config.patch(optimize_ddp=False):
            return self._compiled(images, joints, person_mask, mask_miss, supervised)

    def _loss_terms(
        self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor, supervised: Tensor | None
    ) -> Tensor:
        target = self.renderer(joints, person_mask.float() / 255)  # (N, C, H/4, W/4)
        mask = mask_miss[:, None].float() / 255  # (N, 1, H/4, W/4)
        inputs = images_to_input(images, self.channels_last)
        if self.teacher is not None and self.training:
            target = self.teacher.teach(inputs, target, mask, supervised)
            mask = torch.ones_like(mask)
            supervised = None
        with autocast(images.device, self.amp):
            predictions = self.network(inputs)
        return self.loss.terms(predictions, target, mask, supervised)
