"""The command line: one module per tool, and the flags that several tools share."""
