"""Images, videos, streams and cameras as frames; writing videos."""
