"""Synthetic people: rendering random scenes and writing them as a data set in COCO's layout."""
