"""Whether the heights of images in training and in prediction agree."""

from __future__ import annotations

from posenet.settings.sections import INPUT_MULTIPLE, MAX_SIDE, Config

USUAL_HEIGHTS = 0.6, 1.6
"""Smallest and largest height for prediction, as multiples of the height in training, that need no advice."""


def advise_on_height(config: Config) -> str:
    """What to say where people are predicted much larger or smaller than they were trained; empty elsewhere.

    The network finds nobody then, and the AP, the best checkpoint and the drawings follow from that.
    """
    inference, (train_height, _) = config.inference, config.train.size
    scale = min(inference.scales, key=lambda scale: abs(scale - 1))
    height = inference.height * scale
    if USUAL_HEIGHTS[0] <= height / train_height <= USUAL_HEIGHTS[1]:
        return ""
    remedy = nearest_height(train_height / scale)
    return (
        f"training has images of height {train_height} (train.input_size), but the AP and predictions use "
        f"{height:g} (inference.height), where people have another size; --set "
        f"inference.height={remedy} makes them agree"
    )


def nearest_height(height: float) -> int:
    """The allowed height that is nearest to another one and fits the network without padding."""
    return min(max(round(height / INPUT_MULTIPLE), 1) * INPUT_MULTIPLE, MAX_SIDE)
