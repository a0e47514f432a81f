"""People drawn by program, written as a data set in COCO's layout."""
