"""A launcher with a /tmp of its own: to its eyes, the machines that run its job are others."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from integration.processes import HERE

# $1: what the command leaves in that /tmp, $2: where it goes at the end, $3: how many folders follow that stay as they
# are, then those, then the command.
_SCRIPT = """
left=/tmp/$1; kept=$2; count=$3; shift 3
new=${kept%/*}/own-tmp
mkdir "$new" && mount -t tmpfs none "$new" || exit 99
while [ "$count" -gt 0 ]; do
  case $1 in /tmp/*)
    mkdir -p "$new/${1#/tmp/}" && mount --bind "$1" "$new/${1#/tmp/}" || exit 99;;
  esac
  shift; count=$((count - 1))
done
mount --rbind "$new" /tmp && cd "$PWD" || exit 99
"$@"
code=$?
[ ! -e "$left" ] || cp "$left" "$kept"
exit $code
"""


def own_tmp(shared: Sequence[Path], left: str, kept: Path) -> list[str]:
    """The words before a command that give it a /tmp of its own.

    Args:
        shared: folders that it has in common with all others, even beneath /tmp.
        left: a file that it may leave in its /tmp. kept: where that is copied.
    """
    folders = [str(folder) for folder in (*shared, HERE.parents[1], sys.prefix)]
    assert os.geteuid() == 0
    script = ["sh", "-c", _SCRIPT, "sh", left, str(kept), str(len(folders)), *folders]
    return ["unshare", "--mount", *script]
