"""The decoder: from the network's maps to people.

``decode`` is the entry point. ``candidates`` selects keypoint candidates and the limbs between them, and ``people``
groups them into people with the help of ``grouping`` and ``pose_model``.
"""
