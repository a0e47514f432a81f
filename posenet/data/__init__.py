"""Training data: samples, their augmentation and target maps, batches, and the worker processes that load them."""
