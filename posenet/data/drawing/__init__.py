"""People and places drawn by program: canvas, poses, figures, scenery."""
