"""What compares the annotations with each other: a part of the package that reading and training do without."""
