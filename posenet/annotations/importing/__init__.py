"""Importers of annotations in other formats: they convert them to COCO keypoint files."""
