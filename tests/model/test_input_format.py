"""The network's input format."""

from __future__ import annotations

import torch

from posenet.model.input_format import images_to_input


def test_pixels_keep_their_position_and_channel_order() -> None:
    images = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    images[0, 5, 7] = torch.tensor([255, 51, 0], dtype=torch.uint8)
    inputs = images_to_input(images)
    assert inputs.shape == (1, 3, 64, 64) and inputs.dtype == torch.float32
    torch.testing.assert_close(inputs[0, :, 5, 7], torch.tensor([1.0, 0.2, 0.0]))
    assert inputs.count_nonzero() == 2


def test_the_memory_format_is_the_requested_one() -> None:
    images = torch.randint(0, 256, (2, 8, 6, 3), dtype=torch.uint8)
    contiguous = images_to_input(images)
    channels_last = images_to_input(images, channels_last=True)
    assert contiguous.is_contiguous()
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(contiguous, channels_last)
