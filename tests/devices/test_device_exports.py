"""Exported files on a GPU: the maps of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posenet.inference.exports.onnx_export import build_onnx
from posenet.inference.exports.runtimes import ExportedNetwork
from posenet.settings import Config
from tests.helpers.networks import random_network


def test_onnx_runtime_computes_the_maps_of_the_cpu(cuda: torch.device) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="install simplepose[export] for ONNX Runtime")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA; install onnxruntime-gpu")
    images = np.random.default_rng(0).integers(0, 256, (2, 128, 192, 3), np.uint8)

    def compute_maps(device: str) -> np.ndarray:
        model = build_onnx(random_network(1), Config()).SerializeToString()
        compute = ExportedNetwork(model, "onnxruntime", "a.onnx", device=device, amp="auto")
        return compute(images)

    np.testing.assert_allclose(compute_maps("cuda"), compute_maps("cpu"), atol=1e-2)
