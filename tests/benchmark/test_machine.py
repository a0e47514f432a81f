"""The description of the machine that a benchmark runs on."""

from __future__ import annotations

from dataclasses import replace

import torch

from posenet.benchmark.machine import describe_machine


def test_the_text_names_hardware_and_software() -> None:
    text = describe_machine(torch.device("cpu")).as_text()
    assert "usable cores, threads used: 1" in text
    assert "device cpu" in text
    assert torch.__version__ in text


def test_unknown_values_are_left_out_of_the_text() -> None:
    machine = replace(describe_machine(torch.device("cpu")), memory_gib=None, load=None)
    assert "memory" not in machine.as_text()
    assert "load" not in machine.as_text()


def test_other_programs_on_the_cores_give_a_warning() -> None:
    machine = replace(describe_machine(torch.device("cpu")), usable_cores=2, threads=1, load=1.0)
    assert "WARNING" not in machine.as_text()
    assert "WARNING" in replace(machine, load=1.6).as_text()
    assert "WARNING" in replace(machine, threads=2).as_text()
    assert "WARNING" not in replace(machine, load=None).as_text()
