"""Running the network of a predictor: PyTorch, other runtimes, and exported files."""
