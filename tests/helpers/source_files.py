"""Where the source files are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "posenet"
