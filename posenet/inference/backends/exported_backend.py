"""Prediction with a file that ``posenet export-onnx`` has written, without PyTorch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from posenet.errors import CheckpointError, ConfigError
from posenet.inference.backends.backend import Backend, DecoderInputs, DeviceCandidates, InputBatch, NetworkOutput
from posenet.inference.backends.graph import GraphOptions, load_graph
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS, OnnxMetadata
from posenet.messages import truncate_for_message
from posenet.settings import INPUT_MULTIPLE


class ExportedBackend(Backend):
    """Runs an exported file, which computes the network and selects candidates, at one scale and without flips.

    The settings are those of the file, or else the defaults.

    Args:
        path: the file.
        runtime: name of a runtime in ``RUNTIMES``.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or is not an exported one.
        ConfigError: the runtime is not installed, or it cannot use the device or the precision.
    """

    def __init__(self, path: Path, runtime: str, options: GraphOptions) -> None:
        try:
            model = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        self._digest = hashlib.sha256(model).hexdigest()
        self.graph = load_graph(runtime, model, str(path), options)
        if set(self.graph.inputs) != set(INPUTS) or set(self.graph.outputs) != set(OUTPUTS):
            names = truncate_for_message(", ".join([*self.graph.inputs, *self.graph.outputs]))
            raise CheckpointError(
                f"{path} is not a file that posenet export-onnx has written: its inputs and outputs are {names}, "
                f"not {', '.join([*INPUTS, *OUTPUTS])}"
            )
        self.metadata = OnnxMetadata.from_properties(self.graph.metadata, str(path))
        self.settings = self.metadata.settings
        self.skeleton = self.metadata.skeleton
        num_keypoints = self._count_keypoints()
        if num_keypoints != self.skeleton.num_keypoints:
            raise CheckpointError(
                f"{path} finds {num_keypoints} keypoints, but the skeleton in its metadata has "
                f"{self.skeleton.num_keypoints}: the network and the metadata are of different files; export it again"
            )

    @property
    def parallel_runs(self) -> int:
        """See ``Backend``."""
        return self.graph.parallel_runs

    def run(self, batch: InputBatch) -> NetworkOutput:
        """Run the file on a batch; the output is on the host when this returns."""
        [letterboxes] = batch.letterboxes
        [images] = batch.inputs
        sizes = np.array([letterbox.resized for letterbox in letterboxes], np.int64)
        outputs = self.graph.run({"images": images, "sizes": sizes})
        arrays = zip(*(outputs[name] for name in OUTPUTS))
        candidates: DecoderInputs = [DeviceCandidates(*arrays_of_image) for arrays_of_image in arrays]
        return NetworkOutput(batch.image_sizes, letterboxes, lambda: candidates)

    def compute_maps(self, images: np.ndarray) -> np.ndarray:
        """Not possible: ``ConfigError``."""
        raise ConfigError("an exported file outputs candidates and no maps; use its checkpoint to see the maps")

    def digest(self) -> str:
        """A digest of the file."""
        return self._digest

    def _count_keypoints(self) -> int:
        """The number of keypoints that the network finds, from a run on the smallest image."""
        side = INPUT_MULTIPLE
        inputs = {"images": np.zeros((1, side, side, 3), np.uint8), "sizes": np.array([[side, side]])}
        num_keypoints: int = self.graph.run(inputs)["peaks"].shape[1]
        return num_keypoints
