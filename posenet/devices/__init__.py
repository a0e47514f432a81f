"""Devices and processes: choosing them, one or several per run, precision, random state, launching and stop signals."""
