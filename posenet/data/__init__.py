"""Training samples: decoding, augmentation, target maps, batches and the loader's worker processes."""
