"""``python -m posenet`` is the command ``posenet``."""

import sys

from posenet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
