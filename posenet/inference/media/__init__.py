"""Images, videos, streams and cameras as input; drawings, videos, JSON files and a window as output."""
