"""The HDF5 store of images, people and masks: its schema, reading, writing, building and statistics."""
