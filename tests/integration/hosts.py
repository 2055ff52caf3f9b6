"""Tests that need netlab's hosts. Where those cannot be made, each asserts the reason."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import pytest
from gradwire import netlab
from gradwire.netlab import NetLab, NetLabUnavailable


def needs_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test where hosts can be made; elsewhere asserts that making one says why not."""

    @functools.wraps(test)
    def run(*arguments: object, **keywords: object) -> None:
        reason = netlab.available()
        if reason is None:
            test(*arguments, **keywords)
            return
        with pytest.raises(NetLabUnavailable) as caught:
            NetLab(hosts=1)
        assert reason in str(caught.value)
        assert os.geteuid() == 0 or "root" in reason or "install" in reason

    return run
