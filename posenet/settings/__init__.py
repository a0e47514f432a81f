"""Experiment settings: their sections with all defaults, and reading them from TOML files and overrides."""

from posenet.settings.reading import config_differences, config_from_dict, config_to_dict, config_to_toml, load_config
from posenet.settings.sections import (
    INPUT_MULTIPLE,
    MAP_STRIDE,
    NUM_SCALES,
    PADDING,
    AugmentConfig,
    AverageConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    DataSetConfig,
    DataSets,
    ExifFrame,
    GuardConfig,
    InferenceConfig,
    LogConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    TargetsConfig,
    TrackingConfig,
    TrainConfig,
)

__all__ = [
    "INPUT_MULTIPLE", "MAP_STRIDE", "NUM_SCALES", "PADDING", "AugmentConfig", "AverageConfig", "CheckpointConfig",
    "Config", "DataConfig", "DataSetConfig", "DataSets", "ExifFrame", "GuardConfig", "InferenceConfig",
    "LogConfig", "LossConfig", "ModelConfig", "OptimConfig", "TargetsConfig", "TrackingConfig",
    "TrainConfig",
    "config_differences", "config_from_dict", "config_to_dict", "config_to_toml", "load_config",
]  # fmt: skip
