"""The metadata of an exported ONNX file: what a program must know to use the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from posenet.errors import CheckpointError
from posenet.inference.letterbox import PADDING
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table

INPUTS = ("images", "sizes")
OUTPUTS = ("peaks", "pairs", "evidence")
"""Names in the file. "evidence" is the limb score."""

_CONSTANTS = {"multiple": INPUT_MULTIPLE, "padding": PADDING, "stride": MAP_STRIDE}
"""Properties that are the same in all files of this version."""


@dataclass(frozen=True)
class OnnxMetadata:
    """The metadata of an exported file. They are stored as properties, which are texts."""

    height: int
    """Images should be resized to this height."""
    skeleton: Skeleton
    """Meaning of the keypoints and body parts."""

    def to_properties(self) -> dict[str, str]:
        """The properties of a file."""
        properties = {name: str(value) for name, value in {"height": self.height, **_CONSTANTS}.items()}
        properties["skeleton"] = json.dumps(skeleton_to_table(self.skeleton))
        return properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str) -> Self:
        """Read the properties of the file ``source``. ``CheckpointError`` if posenet has not written them."""
        try:
            constants = {name: int(properties[name]) for name in _CONSTANTS}
            height = int(properties["height"])
            skeleton = skeleton_from_table(json.loads(properties["skeleton"]))
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{source} is not a file that posenet export-onnx has written: its metadata lack the height, the "
                "skeleton or another value; export the network again"
            ) from error
        if constants != _CONSTANTS:
            raise CheckpointError(f"{source} is from another version of posenet; export the network again")
        return cls(height, skeleton)
