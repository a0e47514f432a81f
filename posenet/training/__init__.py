"""Training: the loss, the optimizer, the input stream, the training step, validation and the run's log."""
