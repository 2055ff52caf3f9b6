"""patch(): MXNet's own functions make gradwire's stores, until unpatch()."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mxnet as mx
import mxnet.gluon.trainer
import mxnet.model
import mxnet.module.module

from gradwire.mxnet.errors import KVStoreError
from gradwire.mxnet.plugin import Gradwire
from gradwire.mxnet.store import KVStore
from gradwire.settings.suggestions import nearest
from gradwire.stores import connect

__all__ = ["patch", "unpatch"]

_originals: list[tuple[Any, str, Any]] = []  # owner, name, what it was
_store: KVStore | None = None  # by which this process is in its job


def patch() -> None:
    """Routes mx.kv.create() to gradwire for every name that gradwire.kv.create() has.

    So Module.fit(kvstore=...) and gluon.Trainer(kvstore=...) with such a name use gradwire. Trainer also accepts kv=,
    as in RFC 16795. A name that neither has is an error, where MXNet would make a local store without a message.
    MXNet's plugins keep their names. A second call changes nothing.
    """
    if _originals:
        return
    for owner in (mx.kvstore, mx.kvstore.base):
        _replace(owner, "create", _creating)
    for module in (mxnet.model, mxnet.module.module, mxnet.gluon.trainer):
        _replace(module, "_create_kvstore", _choosing)
    _replace(mxnet.gluon.trainer.Trainer, "__init__", _taking_kv)
    _replace(mxnet.gluon.trainer.Trainer, "_update", _comparing)


def unpatch() -> None:
    """Restores MXNet's own functions. Open stores remain gradwire's."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(around(original)))


def _creating(original: Any) -> Any:
    def create(name: str = "local") -> Any:
        if not isinstance(name, str):
            raise TypeError(f"mx.kv.create: name is {name!r}, expected a string such as 'dist_sync'")
        kind = _known("mx.kv.create", name)
        if kind in mx.kvstore.KVStoreBase.kv_registry:
            return original(name)
        return KVStore(name) if connect.is_local(kind) else _joined(kind)

    return create


def _known(verb: str, name: str) -> str:
    """Returns a store's name in small letters. Raises KVStoreError: neither gradwire nor a plugin has it."""
    kind = name.lower()
    valid = [*connect.names(), *mx.kvstore.KVStoreBase.kv_registry]
    if kind not in valid:
        near = nearest(kind, valid)
        meant = f"did you mean {near!r}? " if near else ""
        raise KVStoreError(f"{verb}: unknown store {name!r}; {meant}valid are {', '.join(valid)}")
    return kind


def _joined(kind: str) -> KVStore:
    """The store of the job; scripts make it once for its rank, and once more inside Trainer or Module."""
    global _store
    if _store is None or _store.type != kind or not _store.is_open:
        _store = KVStore(kind)
    return _store


def _choosing(original: Any) -> Any:
    """MXNet uses no store for one device unless its name has "dist" in it, whatever the name is; ours join a job under
    other names too.
    """

    def create(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        store = _chosen(kvstore) if isinstance(kvstore, str) else kvstore
        return original(store, num_device, arg_params)

    return create


def _chosen(name: str) -> Any:
    """Returns the store of a name that is of several workers; else the name."""
    kind = _known("kvstore=", name)
    if kind in mx.kvstore.KVStoreBase.kv_registry:
        return Gradwire() if kind == Gradwire.__name__.lower() else name
    return name if connect.is_local(kind) else _joined(kind)


def _comparing(original: Any) -> Any:
    """Where the optimizer updates in the Trainer, the store does not see what it updates with."""

    def _update(self: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self._kvstore, KVStore | Gradwire) and not self._update_on_kvstore:
            self._kvstore.compare_optimizers(self._optimizer)
        original(self, *args, **kwargs)

    return _update


def _taking_kv(original: Any) -> Any:
    def __init__(self: Any, *args: Any, kv: Any = None, **kwargs: Any) -> None:
        if kv is not None:
            if "kvstore" in kwargs or len(args) > 3:
                raise TypeError("Trainer: both kv and kvstore are given, and are the same; give one")
            kwargs["kvstore"] = kv
        original(self, *args, **kwargs)

    return __init__
