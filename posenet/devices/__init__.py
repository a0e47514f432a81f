"""Devices and processes: selecting, starting and connecting them; precision, random state and stop signals."""
