"""Distillation: a network learns the maps of a stronger one, its teacher, beside labels or instead of them."""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from posenet.checkpoints.weights import load_model
from posenet.devices.precision import select_amp
from posenet.errors import ConfigError
from posenet.model.fused import FusedNetwork
from posenet.settings import Config
from posenet.training.loss import POSITIVE_THRESHOLD

THRESHOLD = 0.2
"""Smaller responses of the teacher count as 0: most are false, and the focal loss counts all others as foreground."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Teacher:
    """A trained network whose maps are targets for another one.

    This is not a ``torch.nn.Module``, so that the optimizer, the weight averaging, checkpoints and
    DistributedDataParallel do not see its weights. The replicas of DataParallel share it and its device.
    """

    network: FusedNetwork
    weight: float  # ``distill.weight``

    @torch.no_grad()
    def teach(self, images: Tensor, target: Tensor, mask_miss: Tensor, supervised: Tensor | None = None) -> Tensor:
        """Replace the targets by a mixture of them and the teacher's maps.

        With the label's target t, the teacher's map s and ``weight`` w, the new target is ``t + w * (s - t)`` where the
        label counts: in cells with ``mask_miss`` >= 0.5 of supervised channels. Cells that the label counts as
        foreground remain foreground. Everywhere else the new target is s. So the loss may count every cell.

        Args:
            images: (N, 3, H, W) input of the network.
            target: (N, C, h, w) maps of the labels.
            mask_miss: (N, 1, h, w); 1 where labels count, 0 where they are ignored.
            supervised: (N, C); 1 for channels with labels, 0 for those without; None means all.

        Returns:
            (N, C, h, w) float32 in [0, 1].
        """
        maps = self.maps(images)
        mixture = target + self.weight * (maps - target)
        mixture = torch.maximum(mixture, target.clamp(max=POSITIVE_THRESHOLD))
        labels_count = mask_miss >= 0.5
        if supervised is not None:
            labels_count = labels_count & (supervised[:, :, None, None] > 0)  # (N, C, h, w)
        return torch.where(labels_count, mixture, maps)

    @torch.no_grad()
    def maps(self, images: Tensor) -> Tensor:
        """The teacher's maps (N, C, H/4, W/4) for (N, 3, H, W) images, clamped to [0, 1]."""
        device = next(self.network.parameters()).device
        maps = self.network.heatmaps(images.to(device)).to(images.device).float().clamp(0, 1)
        return torch.where(maps < THRESHOLD, torch.zeros_like(maps), maps)


def load_teacher(config: Config, device: torch.device) -> Teacher:
    """The teacher that ``train.teacher`` names, in the fastest precision of the device of a run.

    ``CheckpointError`` if the file is no network, ``ConfigError`` if it has another skeleton than ``model.skeleton``.
    """
    name = config.train.teacher
    network, teacher_config = load_model(name)
    if teacher_config.model.skeleton.changes_of_network(config.model.skeleton):
        raise ConfigError(
            f"the teacher {name} predicts another skeleton than model.skeleton; give both networks the same skeleton"
        )
    amp = select_amp(device, "auto")
    _log.info("Teacher: %s, precision %s; distill.weight %g where labels count", name, amp, config.distill.weight)
    return Teacher(FusedNetwork(network, amp).to(device), config.distill.weight)
