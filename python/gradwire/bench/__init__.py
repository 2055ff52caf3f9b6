"""`gradwire bench`: how fast the codecs are, and how long a round takes, through parameter servers or as an
all-reduce."""

from gradwire.bench.command import app

__all__ = ["app"]
