"""Training data.

From annotations to target maps: ``build`` (COCO JSON and images to records), ``store`` (records in a file), ``dataset``
(records to samples and batches), ``augment``, ``targets`` (target maps, which the training step renders). Around them:
``store_writer``, ``store_list`` (several stores as one), ``sampler``, ``loader`` (worker processes), ``inspection``.
"""
