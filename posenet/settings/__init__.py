"""The experiment's settings: all sections with their defaults, and reading them from TOML and overrides."""
