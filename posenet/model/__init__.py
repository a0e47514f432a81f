"""The network, its input format, its fused copy for prediction, and the published names of its weights."""
