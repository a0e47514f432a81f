"""Images, videos and cameras in; drawings, videos and JSON out."""
