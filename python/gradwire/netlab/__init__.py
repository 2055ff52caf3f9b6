"""Hosts as network namespaces on one bridge, their links shaped both ways: a network of N machines on one.

from gradwire.netlab import NetLab
with NetLab(hosts=4, bandwidth="1gbit") as lab:
    lab.host(0).popen(["python", "train.py"])
"""

from gradwire.netlab.command import app
from gradwire.netlab.lab import (
    MAX_HOSTS,
    QUEUE_SECONDS,
    Counters,
    NetHost,
    NetLab,
    NetLabUnavailable,
    available,
)

__all__ = [
    "MAX_HOSTS",
    "QUEUE_SECONDS",
    "Counters",
    "NetHost",
    "NetLab",
    "NetLabUnavailable",
    "app",
    "available",
]
