"""`gradwire bench`: how fast the codecs are, and how long one round through parameter servers takes."""

from gradwire.bench.command import app

__all__ = ["app"]
