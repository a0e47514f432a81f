"""One training step's forward pass as one module: what data-parallel wrappers wrap."""

from __future__ import annotations

from torch import Tensor, nn

from posenet.data.targets import TargetRenderer
from posenet.devices.precision import Amp, autocast
from posenet.model.preprocessing import prepare
from posenet.training.loss import FocalL2Loss


class ModelWithLoss(nn.Module):
    """uint8 batch to targets, predictions and one loss per image, all on the batch's own device.

    Args:
        network: (N, 3, H, W) images to predictions[stack][scale].
        amp: precision of the network; targets and loss are always float32.
        channels_last: memory layout of the images, which should be the network's.
    """

    def __init__(
        self,
        network: nn.Module,
        renderer: TargetRenderer,
        loss: FocalL2Loss,
        amp: Amp = "off",
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.renderer, self.loss, self.amp = network, renderer, loss, amp
        self.channels_last = channels_last

    def forward(self, images: Tensor, joints: Tensor, person_mask: Tensor, mask_miss: Tensor) -> Tensor:
        """The loss of every image.

        Args:
            images: (N, H, W, 3) BGR uint8.
            joints: (N, P, K, 3) float32: x, y in network-input pixels, visibility.
            person_mask, mask_miss: (N, H/4, W/4) uint8, 255 for 1.

        Returns:
            (N,) float32.
        """
        target = self.renderer(joints, person_mask.float() / 255)
        with autocast(images.device, self.amp):
            predictions = self.network(prepare(images, self.channels_last))
        return self.loss(predictions, target, mask_miss[:, None].float() / 255)
