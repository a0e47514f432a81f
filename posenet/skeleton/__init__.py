"""Keypoints, body parts and output channels: what a network predicts, built in or read from a TOML file."""
