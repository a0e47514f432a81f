"""The loss of an experiment: the focal L2 loss, or one of the user's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posenet.errors import ConfigError
from posenet.extensions import load_extension
from posenet.settings import Config
from posenet.training.loss import FocalL2Loss, Predictions

LossFunction = Callable[[Predictions, Tensor, Tensor], Tensor]


class OwnLoss(nn.Module):
    """A loss of the user, with the interface of ``FocalL2Loss``: its value is the only term."""

    def __init__(self, name: str, function: LossFunction, num_channels: int) -> None:
        super().__init__()
        self.name = name
        self.function = function
        self.num_channels = num_channels
        if any(True for _ in self.parameters()):
            raise ConfigError(f"loss.function={name} has parameters, which nothing trains; make them buffers")

    def terms(
        self, predictions: Predictions, target: Tensor, mask_miss: Tensor, supervised: Tensor | None = None
    ) -> Tensor:
        """(N, 1, 1) float32; the arguments are those of ``FocalL2Loss.terms``."""
        if supervised is not None:
            mask_miss = mask_miss * supervised[:, :, None, None]  # (N, C, h, w)
        values = self.function(predictions, target, mask_miss)
        if not isinstance(values, Tensor) or values.shape != (len(target),):
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ConfigError(
                f"loss.function={self.name} returns {found}, not one value for each of {len(target)} images"
            )
        return values.to(torch.float32)[:, None, None]


def make_loss(config: Config) -> FocalL2Loss | OwnLoss:
    """The loss that ``loss.function`` names, else the focal L2 loss.

    The name is that of a function ``loss(predictions, target, mask)``, or of a class whose objects are such functions;
    it is called with the ``Config``, or its class method ``from_config`` is. Arguments and result are tensors on the
    device of the batch:

    * ``predictions[stack][scale]``: (N, C, h >> scale, w >> scale), in the precision of the network.
    * ``target``: (N, C, h, w) float32 in [0, 1], the maps of the finest scale.
    * ``mask``: (N, 1, h, w) or (N, C, h, w) float32; 1 where a cell is supervised, 0 where it is ignored.
    * The result is (N,): the loss of every image.

    Raises:
        ConfigError: the name cannot be imported, or what it makes cannot be called.
    """
    name = config.loss.function
    if not name:
        return FocalL2Loss.from_config(config)
    found = load_extension("loss.function", name)
    function = getattr(found, "from_config", found)(config) if isinstance(found, type) else found
    if not callable(function):
        raise ConfigError(f"loss.function={name} is a {type(function).__name__}, which cannot be called")
    return OwnLoss(name, function, config.model.skeleton.num_channels)
