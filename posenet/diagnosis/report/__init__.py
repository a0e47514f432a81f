"""The report of a diagnosis: one HTML page that needs no network."""
