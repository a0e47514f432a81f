"""Precision: selecting it, autocast and the loss scaler."""

import pytest
import torch
from torch import nn

from posenet.devices.precision import Amp, make_grad_scaler, select_amp, select_training_mode
from posenet.errors import ConfigError
from posenet.settings import TrainConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "capabilities, mkldnn, expected",
    [
        ({"amx_bf16": True}, True, "bf16"),
        ({"avx512_bf16": True}, False, "off"),
        ({"avx2": True}, True, "off"),
    ],
)
def test_auto_is_bf16_on_a_cpu_that_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], mkldnn: bool, expected: Amp
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: mkldnn)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert select_amp(CPU, "auto") == expected
    for name in ("off", "bf16", "fp16"):
        assert select_amp(CPU, name) == name
    with pytest.raises(ConfigError, match="fp8.*bf16"):
        select_amp(CPU, "fp8")  # type: ignore[arg-type]
    # Training does not depend on the instructions of the CPU.
    assert select_training_mode(CPU, TrainConfig()) == ("off", False)
    assert select_training_mode(CPU, TrainConfig(amp="bf16", channels_last=True)) == ("bf16", True)
    # Some releases of PyTorch do not tell.
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert select_amp(CPU, "auto") == "off"


@pytest.mark.parametrize(
    "bf16, capability, expected",
    [(True, (9, 0), "bf16"), (False, (7, 0), "fp16"), (False, (6, 1), "off")],
)
def test_auto_on_cuda_depends_on_the_device_and_half_precision_trains_in_channels_last(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, capability: tuple[int, int], expected: Amp
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    cuda = torch.device("cuda")
    assert select_amp(cuda, "auto") == expected
    assert select_training_mode(cuda, TrainConfig()) == (expected, expected != "off")
    assert select_training_mode(cuda, TrainConfig(channels_last=False)) == (expected, False)
    assert select_training_mode(cuda, TrainConfig(amp="off")) == ("off", False)
    assert select_amp(torch.device("xpu"), "auto") == select_amp(torch.device("mps"), "auto") == "off"


@pytest.mark.parametrize(
    "amp, loss_scale, expected", [("off", 128.0, 1), ("bf16", 0.0, 1), ("fp16", 0.0, 2**15), ("fp16", 128.0, 128)]
)
def test_only_fp16_scales_the_loss_and_an_overflow_lowers_only_a_dynamic_scale(
    amp: Amp, loss_scale: float, expected: float
) -> None:
    scaler = make_grad_scaler(CPU, amp, loss_scale)
    assert scaler.is_enabled() == (amp == "fp16")
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    for gradient in (1.0, float("inf"), 1.0):
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == scaler.scale(torch.tensor(1.0)) == expected
