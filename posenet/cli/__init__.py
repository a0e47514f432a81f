"""One module per tool: argument parsing and wiring."""
