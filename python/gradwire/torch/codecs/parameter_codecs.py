"""ParameterCodecs: which codec each parameter travels by, by its name and shape.

Biases and the weights of norms have one dimension, hold little of a model's bytes and much of its scale, and
are left uncompressed unless a pattern says otherwise.

Source: PowerSGD (Vogels et al., 2019, section 3) and 1-bit Adam (Tang et al., 2021) leave vectors out likewise.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

import torch

from gradwire.compress import Compression
from gradwire.torch import session

DENSE = Compression("none", "none")
_SHOWN = 5  # names in an error


class ParameterCodecs:
    """The patterns of one model, in the order in which they are tried."""

    def __init__(
        self,
        default: Compression,
        patterns: Mapping[str, session.Wanted] | None = None,
        *,
        may_compress: bool = False,
    ) -> None:
        """
        Args:
            default: what holds where nothing else does.
            may_compress: the default may become a codec later, if it is none now.
            patterns: shell patterns of parameters' names ("*.bias", "embedding.*") and their codecs; the first
                that matches counts.

        Raises:
            ValueError: an unknown codec or parameter of one.
            TypeError: patterns are no mapping.
        """
        if patterns is not None and not isinstance(patterns, Mapping):
            raise TypeError(
                f"gradwire.torch: codecs is {patterns!r}, expected a mapping of name patterns to codecs, such as "
                "{'*.bias': 'fp16'}"
            )
        self._compresses = may_compress or default.spec != "none"
        self._patterns = {
            pattern: session.parse_compression(wanted) for pattern, wanted in (patterns or {}).items()
        }

    def of(self, name: str, parameter: torch.Tensor) -> Compression | None:
        """Returns a parameter's own compression; None: it has the default."""
        for pattern, compression in self._patterns.items():
            if fnmatch.fnmatchcase(name, pattern):
                return compression
        return DENSE if self._compresses and parameter.dim() <= 1 else None

    def require_matches(self, names: Iterable[str]) -> None:
        """Raises ValueError naming a pattern that no parameter has: it would silently do nothing."""
        known = list(names)
        for pattern in self._patterns:
            if not fnmatch.filter(known, pattern):
                shown = ", ".join(map(repr, known[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "")
                meant = f"; names are {shown}" if known else ""
                raise ValueError(
                    f"gradwire.torch: codecs: no parameter's name matches {pattern!r}{meant}; patterns are tried "
                    "against the names in named_parameters"
                )

    def compress_any(self, named: Iterable[tuple[str, torch.Tensor]]) -> bool:
        """True where a parameter has a codec of its own that is not "none"."""
        chosen = (self.of(name, parameter) for name, parameter in named)
        return any(compression is not None and compression.spec != "none" for compression in chosen)
