"""The same as ``posenet docs``; see ``--help``."""

import sys

from posenet.cli.main import run_tool

if __name__ == "__main__":
    sys.exit(run_tool("docs"))
