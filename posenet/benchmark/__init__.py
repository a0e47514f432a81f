"""Speed measured fairly: same process, same input, warmed up, medians, each against a baseline or a limit."""
