"""The same as ``posenet import-weights``; see ``--help``."""

import sys

from posenet.cli.main import run_tool

if __name__ == "__main__":
    sys.exit(run_tool("import-weights"))
