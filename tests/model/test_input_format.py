"""The network's input format."""

from __future__ import annotations

import torch

from posenet.model.input_format import images_to_input


def test_pixels_keep_their_position_and_channel_order_in_both_memory_formats() -> None:
    images = torch.zeros(1, 64, 48, 3, dtype=torch.uint8)
    images[0, 5, 7] = torch.tensor([255, 51, 0], dtype=torch.uint8)
    contiguous, channels_last = (images_to_input(images, channels_last=last) for last in (False, True))
    assert contiguous.is_contiguous() and channels_last.is_contiguous(memory_format=torch.channels_last)
    for inputs in (contiguous, channels_last):
        assert inputs.shape == (1, 3, 64, 48) and inputs.dtype == torch.float32
        torch.testing.assert_close(inputs[0, :, 5, 7], torch.tensor([1.0, 0.2, 0.0]))
        assert inputs.count_nonzero() == 2
