"""The decoder: from the network's maps to people; ``decode.decode`` is the entry point."""
