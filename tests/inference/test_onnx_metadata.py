"""The metadata of an exported file."""

import pytest

from posenet.errors import CheckpointError
from posenet.inference.onnx_metadata import OnnxMetadata
from posenet.skeleton import COCO

METADATA = OnnxMetadata(
    height=192,
    skeleton=COCO,
    max_height=640,
    max_width=1280,
    keypoint_threshold=0.2,
    part_threshold=0.05,
    exif_frame="stored",
    precision="int8",
    network="0123",
    left_out="flip averaging",
)


def test_properties_are_read_as_they_were_written() -> None:
    properties = METADATA.to_properties()
    assert all(isinstance(value, str) for value in properties.values())
    assert OnnxMetadata.from_properties(properties, "a.onnx") == METADATA


@pytest.mark.parametrize(
    "change",
    [
        {"height": None},
        {"height": "tall"},
        {"height": "0"},
        {"keypoint_threshold": "nan"},
        {"skeleton": "{"},
        {"skeleton": "{}"},
        {"skeleton": "[]"},
    ],
    ids=str,
)
def test_a_file_of_another_exporter_is_refused(change: dict[str, str | None]) -> None:
    properties = {name: value for name, value in {**METADATA.to_properties(), **change}.items() if value is not None}
    with pytest.raises(CheckpointError, match="a.onnx is not a file that posenet export-onnx has written"):
        OnnxMetadata.from_properties(properties, "a.onnx")


@pytest.mark.parametrize("change", [{"stride": "8"}, {"precision": "int4"}, {"exif_frame": "mirrored"}], ids=str)
def test_a_file_of_another_version_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(CheckpointError, match="another version"):
        OnnxMetadata.from_properties({**METADATA.to_properties(), **change}, "a.onnx")


def test_a_file_of_an_earlier_version_has_default_thresholds_and_float32_weights() -> None:
    names = ("height", "multiple", "padding", "stride", "skeleton")
    properties = {name: METADATA.to_properties()[name] for name in names}
    assert OnnxMetadata.from_properties(properties, "a.onnx") == OnnxMetadata(height=192, skeleton=COCO)
