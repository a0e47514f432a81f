"""Network, target renderer and loss as one module, which DataParallel and DistributedDataParallel wrap."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from posenet.data.targets import TargetRenderer
from posenet.devices.precision import Amp, autocast, select_training_mode
from posenet.model.posenet import PoseNet
from posenet.model.preprocessing import images_to_input
from posenet.settings import Config
from posenet.training.loss import FocalL2Loss


class ModelWithLoss(nn.Module):
    """Computes one loss per image of a uint8 batch, on the device of the batch.

    It also renders the targets, so that several devices share this work as well. Only the network runs in the precision
    ``amp``; targets and loss are float32. ``channels_last`` is the memory layout of the network.
    """

    def __init__(
        self, network: PoseNet, renderer: TargetRenderer, loss: FocalL2Loss, amp: Amp, channels_last: bool
    ) -> None:
        super().__init__()
        self.network = network
        self.renderer = renderer
        self.loss = loss
        self.amp = amp
        self.channels_last = channels_last

    @classmethod
    def from_config(cls, network: PoseNet, config: Config) -> ModelWithLoss:
        renderer = TargetRenderer.from_config(config)
        loss = FocalL2Loss.from_config(config)
        mode = select_training_mode(next(network.parameters()).device, config.train)
        return cls(network, renderer, loss, mode.amp, mode.channels_last)

    def forward(
        self,
        images: Tensor,
        joints: Tensor,
        person_mask: Tensor,
        mask_miss: Tensor,
        supervised: Tensor | None = None,
    ) -> Tensor:
        """The loss of every image.

        Args:
            images: (N, H, W, 3) BGR uint8.
            joints: (N, P, K, 3) float32: x and y in network-input pixels, and visibility.
            person_mask: (N, H/4, W/4) uint8, 255 where people are.
            mask_miss: (N, H/4, W/4) uint8, 255 where the loss supervises.
            supervised: (N, C) uint8, 1 for the channels that the loss supervises; None means all.

        Returns:
            (N,) float32.
        """
        target = self.renderer(joints, person_mask.float() / 255)  # (N, C, H/4, W/4)
        with autocast(images.device, self.amp):
            predictions = self.network(images_to_input(images, self.channels_last))
        return cast(Tensor, self.loss(predictions, target, mask_miss[:, None].float() / 255, supervised))
