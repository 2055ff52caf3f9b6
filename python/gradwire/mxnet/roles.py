"""What must happen before `import mxnet`: serving, if this process is no worker, and checking that MXNet is there."""

from __future__ import annotations

import importlib

from gradwire.settings import definitions as settings
from gradwire.stores import connect

_PACKAGES = "pip install mxnet==1.9.1 numpy==1.23.5"


def serve_unless_worker() -> None:
    """Serves the job and exits if the environment makes this process a server or scheduler.

    It must come first, because `import mxnet` would start MXNet's own server and never return.

    Raises: ValueError: settings are bad, or there is no address of a scheduler.
    """
    values = settings.read()
    if values.role != "worker":
        connect.serve(values)


def require_mxnet() -> None:
    """Raises ImportError, naming what to install, if MXNet 1.9 cannot be imported."""
    try:
        mxnet = importlib.import_module("mxnet")
    except ModuleNotFoundError as error:
        if error.name != "mxnet":
            raise
        raise ImportError(
            f"gradwire.mxnet: MXNet is not installed here; {_PACKAGES}, under Python 3.11 or 3.10",
            name="mxnet",
        ) from None
    except AttributeError as error:  # it uses names that NumPy 1.24 has dropped
        raise ImportError(
            f"gradwire.mxnet: MXNet cannot be imported beside this NumPy ({error}); {_PACKAGES}", name="mxnet"
        ) from None
    if not mxnet.__version__.startswith("1.9."):
        raise ImportError(
            f"gradwire.mxnet: MXNet is {mxnet.__version__} here, expected 1.9; {_PACKAGES}", name="mxnet"
        )
