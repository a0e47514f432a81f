"""The decoder: from the network's maps to people.

``decode`` is the entry point. It selects keypoint candidates and limbs (``host_candidates``; ``device_candidates`` does
the same in PyTorch; ``candidates`` states their common rules), and ``people`` groups them into people with the help of
``grouping`` and ``pose_model``.
"""
