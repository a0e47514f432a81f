"""Drawings: people, sheets of maps and of training samples, and curves."""
