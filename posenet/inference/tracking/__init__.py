"""Who is who in a video: people keep an identity from frame to frame, and their keypoints are smoothed."""
