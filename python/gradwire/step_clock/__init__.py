"""What a profiled process starts with; see sitecustomize.py."""
