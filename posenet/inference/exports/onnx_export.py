"""A network as an ONNX file, from images to maps, in float32 or with 8-bit convolutions.

Checkpoints that a runtime runs are converted once, and kept as files in the user's cache (``load_converted``).
"""

import hashlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import posenet
from posenet.checkpoints.file import cache_folder
from posenet.checkpoints.weights import load_model, stored_config
from posenet.errors import CheckpointError, DataError, PosenetError
from posenet.files import read_input, sha256_of, write_atomically
from posenet.images import read_image
from posenet.inference.averaging import Letterbox
from posenet.inference.exports.runtimes import CONSTANTS, INPUT, OUTPUT, PROPERTY, ExportedNetwork, require_packages
from posenet.model import fused
from posenet.model.fused import FusedNetwork
from posenet.model.layers import images_to_input
from posenet.progress_bar import progress_bar
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, PADDING, Config, InferenceConfig, config_to_dict
from posenet.skeleton.skeleton_file import skeleton_to_table

if TYPE_CHECKING:
    import onnx

    from posenet.devices.precision import Amp

CALIBRATION_IMAGES = 64
"""Number of images on which the ranges of an 8-bit file are measured. More change the ranges little."""
FLOAT_CONVOLUTIONS = 2
"""Number of convolutions at the end that an 8-bit file keeps in float32: rounding costs most in them."""
FEW_IMAGES = 32
"""For so many images, PyTorch ends before a checkpoint is converted for a faster runtime: with ``tiny`` and with four
stacks, both are equal at 30 to 55 images on the processors that were measured. See docs/deployment.md."""
CHECKSUM_BYTES = hashlib.sha256().digest_size
MAX_FILES = 8
"""Files in the cache; the oldest one is the first to go. A network of four stacks takes 500 MB."""

_log = logging.getLogger(__name__)


class ImagesToMaps(nn.Module):
    """The exported computation: (N, H, W, 3) uint8 BGR, H and W multiples of 64, to (N, C, H/4, W/4) float32."""

    def __init__(self, network: nn.Module, upsample_first: bool) -> None:
        super().__init__()
        self.network = FusedNetwork(network, "off", upsample_first)

    def forward(self, images: Tensor) -> Tensor:
        return self.network.heatmaps(images_to_input(images))


def build_onnx(network: nn.Module, config: Config, *, for_quantization: bool = False) -> "onnx.ModelProto":
    """An ONNX model of a copy of a network, with ``INPUT`` and ``OUTPUT``, for any batch size, height and width.

    What prediction needs of the configuration is stored in the model. ``for_quantization`` enlarges maps before they
    are convolved; the result is the same. ``ConfigError`` if a package is missing.
    """
    require_packages("onnx")
    import onnx

    computation = ImagesToMaps(network, upsample_first=for_quantization).cpu().eval()
    example = torch.zeros(2, 2 * INPUT_MULTIPLE, 3 * INPUT_MULTIPLE, 3, dtype=torch.uint8)
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        # The exporter warns that checks of shapes become constants, which is intended, and that there is a newer one
        # (dynamo=True). With PyTorch 2.13 that one writes the same operations, but takes thirty times as long, and
        # needs one more package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            computation,
            (example,),
            file,  # type: ignore[arg-type]  # PyTorch's type hints leave out file objects, which it accepts
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={
                INPUT: {0: "batch", 1: "height", 2: "width"},
                OUTPUT: {0: "batch", 2: "map_height", 3: "map_width"},
            },
            opset_version=17,
            dynamo=False,
        )
    model = onnx.load_model_from_string(file.getvalue())
    _describe(model, config, "float32")
    return model


def read_calibration_images(files: Sequence[Path], settings: InferenceConfig) -> list[np.ndarray]:
    """Read at most ``CALIBRATION_IMAGES`` from all parts of a list, resized and padded as for a prediction."""
    count = min(len(files), CALIBRATION_IMAGES)
    positions = np.linspace(0, len(files) - 1, count).round().astype(int)
    images = (read_image(files[position]) for position in positions)
    return [Letterbox.fit((image.shape[0], image.shape[1]), settings).apply(image) for image in images]


def quantize_onnx(model: "onnx.ModelProto", config: Config, images: Sequence[np.ndarray]) -> "onnx.ModelProto":
    """A model in which all convolutions but the last ``FLOAT_CONVOLUTIONS`` are in 8-bit integers.

    Weights are between -64 and 64: on x86 processors without VNNI, the sum of two products of an 8-bit input and a
    weight has to fit into 16 bits, and larger ones would be cut off without a word.

    Args:
        model: from ``build_onnx``, made ``for_quantization``: transposed convolutions would stay in float32.
        images: for calibration, at least one; see ``read_calibration_images``.
    """
    require_packages("onnx", "onnxruntime")
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    if not images:
        raise DataError("there are no images for calibration")

    inputs = ({INPUT: image[None]} for image in progress_bar(images, "calibrate", leave=False))

    class Images(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(inputs, None)

    copy = onnx.ModelProto.FromString(model.SerializeToString())
    _copy_shared_weights(copy)
    convolutions = [node.name for node in copy.graph.node if node.op_type == "Conv"]
    # Without this mark, the quantizer advises on preprocessing, which changes nothing here.
    onnx.helper.set_model_props(copy, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "int8.onnx")
        quantize_static(
            copy,
            path,
            Images(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,
            nodes_to_exclude=convolutions[-FLOAT_CONVOLUTIONS:],
            # Outputs are rounded after the activation, as inputs of the next convolution.
            extra_options={"OpTypesToExcludeOutputQuantization": ["Conv"]},
        )
        quantized = onnx.load(path)
    _fill_empty_biases(quantized)
    del quantized.metadata_props[:]
    _describe(quantized, config, "int8")
    return quantized


def _describe(model: "onnx.ModelProto", config: Config, precision: str) -> None:
    """Write into a model who has written it, what it computes, in which precision, and what is needed to use it."""
    import onnx

    model.producer_name = "posenet"
    model.producer_version = posenet.__version__
    model.doc_string = f"Maps of keypoints and body parts; {precision} convolutions."
    channels = model.graph.output[0].type.tensor_type.shape.dim[1]
    channels.dim_value = config.model.skeleton.num_channels  # replaces a name
    tables = config_to_dict(config)
    stored: dict[str, Any] = {
        "precision": precision,
        "colours": "BGR",
        "padding": PADDING,
        "padded_sides": ["right", "bottom"],
        "first_cell": (MAP_STRIDE - 1) / 2,
        "channels": config.model.skeleton.describe_channels(),
        "inference": tables["inference"],
        "tracking": tables["tracking"],
        "model": {"skeleton": skeleton_to_table(config.model.skeleton)},
    }
    onnx.helper.set_model_props(model, {PROPERTY: json.dumps(CONSTANTS | stored)})
    onnx.checker.check_model(model)


def _copy_shared_weights(model: "onnx.ModelProto") -> None:
    """Give each layer weights of its own. PyTorch's exporter stores equal ones once, which the quantizer cannot use."""
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    shared = [node for node in model.graph.node if node.op_type == "Identity" and node.input[0] in initializers]
    for node in shared:
        copy = model.graph.initializer.add()
        copy.CopyFrom(initializers[node.input[0]])
        copy.name = node.output[0]
        model.graph.node.remove(node)


def _fill_empty_biases(model: "onnx.ModelProto") -> None:
    """Replace the first value by the smallest one in every 8-bit bias whose values are all 0.

    OpenVINO leaves out a bias of zeros. Its int8 convolutions on AMX then read a wrong address where the input is small
    (seen with version 2026.4.1). BatchNorm without training has such biases.
    """
    import onnx

    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    stored = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for node in model.graph.node:
        if node.op_type == "Conv" and len(node.input) > 2 and node.input[2] in stored:
            tensor = initializers[stored[node.input[2]]]
            bias = onnx.numpy_helper.to_array(tensor).copy()
            if not bias.any():
                bias[0] = 1
                tensor.CopyFrom(onnx.numpy_helper.from_array(bias, tensor.name))


def load_converted(
    checkpoint: Path,
    config: Config | None,
    runtime: str,
    device: str,
    amp: 'Amp | Literal["auto"]',
    num_images: int | None,
    *,
    is_requested: bool,
) -> tuple[ExportedNetwork, Config] | None:
    """A checkpoint in one of ``RUNTIMES``, and its configuration; the arguments are those of ``Predictor``.

    None if nobody has requested the runtime, and PyTorch serves better: for a few images, unless the checkpoint is
    converted already; and for a network of the user, because what it computes may not survive a change of its layers
    or its type.
    """
    config = config or stored_config(checkpoint)
    file = _converted_file(checkpoint, config)
    kept = read_input(file) if file is not None and file.is_file() else b""
    model, checksum = kept[:-CHECKSUM_BYTES], kept[-CHECKSUM_BYTES:]
    if hashlib.sha256(model).digest() != checksum:  # there is none, or it was damaged
        is_few = num_images is not None and num_images <= FEW_IMAGES
        if not is_requested and (is_few or config.model.network):
            return None
        _log.info("%s is converted, which takes a while, and %s", checkpoint, f"kept in {file}" if file else "not kept")
        model = build_onnx(load_model(checkpoint, config)[0], config).SerializeToString()
        if file is not None:
            _keep_converted(model, file)
    return ExportedNetwork(model, runtime, str(checkpoint), device, amp), config


def _converted_file(checkpoint: Path, config: Config) -> Path | None:
    """The file to which a checkpoint is converted, which may not exist; None if it cannot be kept.

    Its name is a checksum of all that the network depends on: the bytes of the checkpoint, the settings of the network,
    the versions of the programs, and the code. A network of the user is not kept: its code may change.
    """
    if config.model.network:
        return None
    try:
        folder = cache_folder() / "converted"
    except CheckpointError:
        return None
    code = sorted([*Path(fused.__file__).parent.glob("*.py"), *Path(__file__).parent.glob("*.py")])
    settings = json.dumps(config_to_dict(config)["model"], sort_keys=True)
    key = [sha256_of(checkpoint), settings, posenet.__version__, torch.__version__, *map(sha256_of, code)]
    return folder / hashlib.sha256("".join(key).encode()).hexdigest()[:32]


def _keep_converted(model: bytes, file: Path) -> None:
    """Write a file and its checksum, and remove the oldest ones, also what killed processes have left."""
    try:
        write_atomically(file, model + hashlib.sha256(model).digest())
        files = [path for path in file.parent.iterdir() if path.is_file()]
        for path in sorted(files, key=lambda path: -path.stat().st_mtime)[MAX_FILES:]:
            path.unlink(missing_ok=True)
    except (OSError, PosenetError) as error:  # on Windows also where another process has an old file open
        _log.info("The converted network is not kept: %s", error)
