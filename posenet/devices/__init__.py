"""Devices and processes: selecting, starting and connecting them; precision and stop signals."""
