"""The shim: `import horovod.torch` and `horovod.mxnet` mean gradwire's, where somebody has asked for it.

    import gradwire.horovod.shim
    gradwire.horovod.shim.install()

or, without a change to the script, `python -m gradwire.horovod.run script.py`. Modules that scripts import by name
(horovod.torch.mpi_ops, horovod.torch.elastic, ...) are those of gradwire that have the same things in them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_MODULES = {
    "horovod": "gradwire.horovod",
    "horovod.mxnet": "gradwire.horovod.mxnet",
    "horovod.mxnet.compression": "gradwire.horovod.mxnet.compression",
    "horovod.mxnet.functions": "gradwire.horovod.mxnet",
    "horovod.mxnet.mpi_ops": "gradwire.horovod.mxnet",
    "horovod.torch": "gradwire.horovod.torch",
    "horovod.torch.compression": "gradwire.horovod.torch.compression",
    "horovod.torch.elastic": "gradwire.horovod.torch.elastic",
    "horovod.torch.elastic.sampler": "gradwire.horovod.torch.elastic.sampler",
    "horovod.torch.elastic.state": "gradwire.horovod.torch.elastic.state",
    "horovod.torch.functions": "gradwire.horovod.torch",
    "horovod.torch.mpi_ops": "gradwire.horovod.torch",
    "horovod.torch.optimizer": "gradwire.horovod.torch.optimizer",
    "horovod.torch.sync_batch_norm": "gradwire.horovod.torch.sync_batch_norm",
    "horovod.common": "gradwire.horovod",
    "horovod.common.exceptions": "gradwire.horovod.errors",
    "horovod.common.process_sets": "gradwire.horovod.process_sets",
}


def install() -> None:
    """Makes `import horovod`, and its modules that gradwire has, find gradwire's, in this process. Idempotent.

    Raises:
        ImportError: Horovod itself is installed: uninstall it, or import gradwire.horovod.torch by its name.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    found = sys.modules.get("horovod") or importlib.util.find_spec("horovod")
    if found is not None:
        raise ImportError(
            "gradwire.horovod.shim: Horovod itself is installed here, and which one `import horovod` means must not "
            "depend on who came first; uninstall it, or write `import gradwire.horovod.torch as hvd`"
        )
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of Horovod's under its name here."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A module of Horovod's name with all that ours has: ours keeps its own name, spec and loader."""
        ours = importlib.import_module(_MODULES[spec.name])
        alias = ModuleType(spec.name, ours.__doc__)
        alias.__dict__.update({k: v for k, v in vars(ours).items() if not k.startswith("__")})
        return alias

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run."""
