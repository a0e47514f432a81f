"""COCO keypoint annotations: reading and checking the files, main persons, masks, drafting skeletons, linting."""
