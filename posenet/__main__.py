"""``python -m posenet`` is the command ``posenet``."""

import sys


def main() -> int:
    """Run the command. Ctrl-C ends it with one line also while its modules are imported."""
    try:
        from posenet.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("posenet: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
