"""The network, the published names of its weights, its input format and its fused copy for prediction."""
