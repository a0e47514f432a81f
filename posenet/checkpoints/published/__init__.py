"""The authors' weights: downloads by name, the names of parameters, and conversion."""
