"""The runtime: devices, precision, loss scaling, random states and stop signals."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from torch import nn

from posenet.devices.device import select_device
from posenet.devices.precision import autocast, grad_scaler
from posenet.devices.runtime import Runtime
from posenet.devices.signals import stop_signals
from posenet.errors import ConfigError

CPU = torch.device("cpu")
HANDLED = (signal.SIGINT, signal.SIGTERM)


def scaled_step(scaler: torch.amp.GradScaler, factor: float) -> None:
    """One scaled step of a single weight whose gradient is ``factor``."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_the_named_device_is_picked() -> None:
    assert select_device("cpu") == CPU


def test_auto_is_a_device_that_works() -> None:
    assert torch.zeros(1, device=select_device()).item() == 0


@pytest.mark.parametrize("name", ["", "0", "gpu", "cpux", "cuda:99", "xla", "hpu", "privateuseone", "meta"])
def test_a_device_that_cannot_be_used_is_named_in_one_short_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select_device(name)
    message = str(caught.value)
    assert message.startswith(f"device {name!r} cannot be used here") and "--device cpu" in message
    assert "\n" not in message and len(message) < 400


def test_autocast_off_does_nothing() -> None:
    with autocast(CPU, "off"):
        assert not torch.is_autocast_enabled("cpu")
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize("amp, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_runs_layers_in_the_asked_precision(amp: str, dtype: torch.dtype) -> None:
    with autocast(CPU, amp):
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


@pytest.mark.parametrize("amp", ["off", "bf16"])
@pytest.mark.parametrize("fixed", [0.0, 128.0])
def test_without_fp16_the_scaler_does_nothing(amp: str, fixed: float) -> None:
    scaler = grad_scaler(CPU, amp, fixed)
    assert not scaler.is_enabled() and scaler.scale(torch.tensor(3.0)) == 3


def test_a_dynamic_scale_falls_on_overflow() -> None:
    scaler = grad_scaler(CPU, "fp16")
    before = scaler.get_scale()
    scaled_step(scaler, float("inf"))
    assert scaler.get_scale() < before


def test_a_fixed_scale_stays() -> None:
    scaler = grad_scaler(CPU, "fp16", 128.0)
    for factor in (1.0, float("inf"), 1.0, float("nan"), 1.0):
        scaled_step(scaler, factor)
        assert scaler.get_scale() == 128


def test_a_fixed_scale_comes_back_from_its_state() -> None:
    restored = grad_scaler(CPU, "fp16", 128.0)
    restored.load_state_dict(grad_scaler(CPU, "fp16", 64.0).state_dict())
    scaled_step(restored, float("inf"))
    assert restored.get_scale() == 64


def test_one_process_is_the_whole_world() -> None:
    runtime = Runtime(CPU)
    module = nn.Linear(1, 1)
    assert runtime.is_main and (runtime.rank, runtime.world_size) == (0, 1)
    assert runtime.wrap(module) is module
    assert runtime.any_rank(True) and not runtime.any_rank(False)
    assert runtime.all_reduce_sum(torch.tensor([1.0, 2.0])).tolist() == [1, 2]
    assert runtime.gather_objects("value") == ["value"]
    runtime.synchronize()


def test_random_numbers_go_on_where_their_state_was_taken() -> None:
    runtime = Runtime(CPU)
    state = runtime.random_state()
    expected = torch.rand(4)
    torch.rand(3)
    runtime.set_random_state(state)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_becomes_a_flag_and_the_old_handlers_come_back(number: int) -> None:
    before = [signal.getsignal(n) for n in HANDLED]
    with stop_signals() as stop_asked:
        assert not stop_asked()
        signal.raise_signal(number)
        assert stop_asked()
    assert [signal.getsignal(n) for n in HANDLED] == before


@pytest.mark.skipif(not hasattr(os, "kill") or os.name == "nt", reason="Windows kills instead of signalling")
def test_a_signal_from_another_process_is_caught_too() -> None:
    with stop_signals() as stop_asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_asked()


def test_the_second_ctrl_c_interrupts_at_once() -> None:
    before = [signal.getsignal(n) for n in HANDLED]
    with pytest.raises(KeyboardInterrupt), stop_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(n) for n in HANDLED] == before


def test_the_handlers_come_back_after_an_error() -> None:
    before = [signal.getsignal(n) for n in HANDLED]
    with pytest.raises(RuntimeError), stop_signals():
        raise RuntimeError
    assert [signal.getsignal(n) for n in HANDLED] == before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    flags: list[bool] = []

    def ask() -> None:
        with stop_signals() as stop_asked:
            flags.append(stop_asked())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert flags == [False]
