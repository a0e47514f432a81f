"""The decoder: keypoint candidates, limbs between them, and their grouping into people."""
