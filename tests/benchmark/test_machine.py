"""The description of the machine that a benchmark runs on."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from posenet.benchmark.machine import describe_machine, peak_memory_mib


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


def test_the_peak_memory_of_a_new_process_does_not_count_that_of_its_parent() -> None:
    block = np.ones(2**30, np.uint8)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        peak_of_child = pool.submit(peak_memory_mib).result()
    peak = peak_memory_mib()
    if peak is None or peak_of_child is None:
        return  # Windows
    assert peak > block.nbytes / 2**20 > peak_of_child > 1
