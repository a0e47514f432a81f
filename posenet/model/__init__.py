"""The network, its input format, and its fused copy for prediction."""
