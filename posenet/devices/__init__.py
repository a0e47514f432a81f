"""Where a run computes: one device, several in one process, or several processes; signals and launching."""
