"""Drawings: people, the network's maps, training samples, training curves and evaluation charts."""
