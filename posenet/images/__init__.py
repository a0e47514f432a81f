"""Image files: decoding them safely, listing, reading and writing them."""
