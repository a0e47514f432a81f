"""Networks as ONNX files: writing them, running them, and the files that checkpoints are converted to."""
