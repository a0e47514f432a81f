"""Where an optimizer step makes the host wait for an accelerator."""

from __future__ import annotations

LINES_THAT_WAIT: dict[str, int] = {}
"""How often each line, ``file: function: line of code``, waits in one step. There is none: the trainer reads the result
of a step while the device works on the next one. A new line needs a reason."""
