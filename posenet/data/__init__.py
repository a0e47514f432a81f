"""Training data.

From annotations to target maps: ``build`` (annotations and images to records), ``store`` (records in a file),
``store_list`` (several stores as one), ``loader`` (the order of samples, worker processes), ``dataset`` (records to
samples and batches), ``augment``, ``targets`` (target maps, which the training step renders).
"""
