"""Settings: their definitions, files, checks and units."""
