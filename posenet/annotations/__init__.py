"""COCO keypoint annotation files: reading, checking and linting them, and the masks they describe."""
