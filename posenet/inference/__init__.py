"""From an image to its people, and from a data set to COCO's scores."""
