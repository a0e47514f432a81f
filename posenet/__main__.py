"""``python -m posenet`` is the command ``posenet``."""

from __future__ import annotations

import sys

from posenet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
