"""What people look at: drawn people, maps, training samples, curves and charts."""
