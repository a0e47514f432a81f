"""The data path: COCO annotations, the HDF5 store, augmentation, targets, samplers and loaders."""
