"""The store: one HDF5 file per split that holds images, people and masks. Its layout, reading, writing and building."""
