"""COCO keypoint annotations: reading, checking and linting the files, main persons, masks, drafting skeletons."""
