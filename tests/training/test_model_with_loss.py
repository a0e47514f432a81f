"""The training step as one module: frames, precision, and agreement with its parts."""

import torch

from posenet.data.targets import TargetRenderer
from posenet.settings import LossConfig, TargetsConfig
from posenet.skeleton import COCO
from posenet.training.loss import FocalL2Loss
from posenet.training.model_with_loss import ModelWithLoss
from tests.helpers.networks import tiny_network


def make_batch(n: int = 2, size: int = 64):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=generator)
    joints = torch.rand(n, 3, 18, 3, generator=generator) * size
    person_mask = torch.randint(0, 256, (n, size // 4, size // 4), dtype=torch.uint8, generator=generator)
    return images, joints, person_mask, torch.full_like(person_mask, 255)


def make_step(amp="off"):
    renderer = TargetRenderer(TargetsConfig(), COCO)
    loss = FocalL2Loss(LossConfig(), COCO)
    return ModelWithLoss(tiny_network(stacks=1), renderer, loss, amp, False).eval()


def test_step_is_renderer_network_and_loss():
    step, (images, joints, person_mask, mask_miss) = make_step(), make_batch()
    target = step.renderer(joints, person_mask / 255)
    expected = step.loss(step.network(images.permute(0, 3, 1, 2) / 255), target, mask_miss[:, None] / 255)
    assert torch.allclose(step(images, joints, person_mask, mask_miss), expected, rtol=1e-5)


def test_loss_of_an_image_does_not_depend_on_its_neighbours():
    step, batch = make_step(), make_batch(3)
    together = step(*batch)
    alone = torch.cat([step(*(t[i : i + 1] for t in batch)) for i in range(3)])
    assert together.shape == (3,) and torch.allclose(together, alone, rtol=1e-5)


def test_bf16_gives_a_float32_loss_near_the_exact_one():
    batch = make_batch()
    exact, rough = make_step()(*batch), make_step("bf16")(*batch)
    assert rough.dtype == torch.float32 and torch.allclose(exact, rough, rtol=0.05)


def test_terms_are_counted_in_training_only_and_add_up_to_the_loss():
    step, batch = make_step(), make_batch()
    assert step.loss.meter.read() is None
    step(*batch)
    assert step.loss.meter.read() is None
    step.train()
    losses = torch.cat([step(*batch), step(*make_batch(3))]).detach()
    terms = step.loss.meter.read()
    assert [len(row) for row in terms] == [5]
    assert abs(sum(map(sum, terms)) / losses.mean().item() - 1) < 1e-4
    assert step.loss.meter.read() is None, "read once"


def test_terms_of_an_explosion_are_not_told():
    step = make_step()
    step.loss.meter.add(torch.tensor([[[float("nan")]]]))
    assert step.loss.meter.read() is None
    step.loss.meter.add(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    assert step.loss.meter.read() == [[2.0, 3.0]]
