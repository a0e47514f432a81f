"""The store, an HDF5 file of images, people and masks for each split: its layout, reading, writing and building."""
