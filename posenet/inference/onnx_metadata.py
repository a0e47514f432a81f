"""The metadata of an exported ONNX file: what a program must know to use the file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

from posenet.errors import CheckpointError
from posenet.inference.letterbox import PADDING
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, DataConfig, ExifFrame, InferenceConfig
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table

INPUTS = ("images", "sizes")
OUTPUTS = ("peaks", "pairs", "evidence")
"""Names in the file. "evidence" is the limb score."""

_CONSTANTS = {"multiple": INPUT_MULTIPLE, "padding": PADDING, "stride": MAP_STRIDE}
"""Properties that are the same in all files of this version."""


FilePrecision = Literal["float32", "int8"]
"""How an exported file stores and computes the network. The candidates are always selected in float32."""


@dataclass(frozen=True)
class OnnxMetadata:
    """The metadata of an exported file. They are stored as properties, which are texts.

    Files of earlier versions have only the height and the skeleton; the rest has defaults.
    """

    height: int
    """Images should be resized to this height."""
    skeleton: Skeleton
    """Meaning of the keypoints and body parts."""
    max_height: int = InferenceConfig.max_height
    """Upper limit of the height of the network input; see ``InferenceConfig``."""
    max_width: int = InferenceConfig.max_width
    """Upper limit of the width of the network input; see ``InferenceConfig``."""
    keypoint_threshold: float = InferenceConfig.keypoint_threshold
    """Smallest peak value of a keypoint map that becomes a candidate; see ``InferenceConfig``."""
    part_threshold: float = InferenceConfig.part_threshold
    """Smallest response of a limb; see ``InferenceConfig``."""
    exif_frame: ExifFrame = DataConfig.exif_frame
    """The frame in which the network was trained to see images; see ``DataConfig``."""
    precision: FilePrecision = "float32"
    """How the network is stored and computed."""
    network: str = ""
    """Digest of the weights of the network that was exported, as ``digest_of_network`` computes it; "" if unknown."""
    left_out: str = ""
    """Settings of the checkpoint that the file leaves out: flip averaging, several scales; "" if there are none."""

    @property
    def settings(self) -> InferenceConfig:
        """The settings with which the file runs. ``ValueError`` if a value is out of range."""
        return InferenceConfig(
            height=self.height,
            max_height=self.max_height,
            max_width=self.max_width,
            keypoint_threshold=self.keypoint_threshold,
            part_threshold=self.part_threshold,
        )

    def to_properties(self) -> dict[str, str]:
        """The properties of a file."""
        properties = {field.name: str(getattr(self, field.name)) for field in dataclasses.fields(self)}
        properties |= {name: str(value) for name, value in _CONSTANTS.items()}
        properties["skeleton"] = json.dumps(skeleton_to_table(self.skeleton))
        return properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str) -> Self:
        """Read the properties of the file ``source``. ``CheckpointError`` if posenet has not written them."""
        try:
            constants = {name: int(properties[name]) for name in _CONSTANTS}
            metadata = cls(
                height=int(properties["height"]),
                skeleton=skeleton_from_table(json.loads(properties["skeleton"])),
                max_height=int(properties.get("max_height", cls.max_height)),
                max_width=int(properties.get("max_width", cls.max_width)),
                keypoint_threshold=float(properties.get("keypoint_threshold", cls.keypoint_threshold)),
                part_threshold=float(properties.get("part_threshold", cls.part_threshold)),
                exif_frame=cast(ExifFrame, properties.get("exif_frame", cls.exif_frame)),
                precision=cast(FilePrecision, properties.get("precision", cls.precision)),
                network=properties.get("network", ""),
                left_out=properties.get("left_out", ""),
            )
            _ = metadata.settings  # raises its errors
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{source} is not a file that posenet export-onnx has written: its metadata lack the height, the "
                "skeleton or another value, or have one that is not valid; export the network again"
            ) from error
        is_known = metadata.precision in get_args(FilePrecision) and metadata.exif_frame in get_args(ExifFrame)
        if constants != _CONSTANTS or not is_known:
            raise CheckpointError(f"{source} is from another version of posenet; export the network again")
        return metadata
