"""One word for one idea: identifiers use the field's term, and not the one that stood here before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from structure.repository import CPP_SUFFIXES, code_of, files, read

# What is not to come back, as part of an identifier or of a file's name, and what it is called.
WORDS = {
    "roll_call": "rendezvous",
    "attendance": "arrival set",
    "doorkeeper": "authenticator",
    "drawn_element": "random selection",
    "engine_thread": "round thread",
    "exchange_desk": "exchange coordinator",
    "last_pushes": "straggler counts",
    "mailbox": "blob store",
    "mpi_parcel": "packet",
    "mpi_pace": "backoff",
    "nccl_entry": "bootstrap",
    "passing_messenger": "forwarding messenger",
    "sent_along": "bundle",
    "ssh_keeper": "agent",
    "sum_tail": "sum trailer",
    "letters": "blobs",
    "hostile_stranger": "unauthenticated peer",
    "kept_process": "supervised process",
    "unrecorded": "no_autograd",
    "vote_planes": "bit plane counters",
}
# A name that scripts rely on: a parameter of kv.join().
PUBLIC = {
    "roll_call": ("python/gradwire/kv.py",),
}
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")


def snake(name: str) -> str:
    """mpi_parcel of MpiParcel and kMpiParcel."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def identifiers(path: Path, text: str) -> Iterator[str]:
    yield path.stem
    code = (
        code_of(text)
        if path.suffix in CPP_SUFFIXES
        else re.sub(r'#[^\n]*|"""(?s:.*?)"""|"[^"\n]*"', "", text)
    )
    yield from IDENTIFIER.findall(code)


def found_in(path: Path, text: str) -> set[str]:
    names = "\n".join(snake(name) for name in set(identifiers(path, text)))
    words = {word for word in WORDS if word in names}
    return {word for word in words if not path.as_posix().startswith(PUBLIC.get(word, ()))}


def test_no_old_word_has_come_back() -> None:
    own = Path("tests/structure/words_test.py")
    code = [p for p in files() if p.suffix in {*CPP_SUFFIXES, ".py"} and p != own]
    assert len(code) > 500
    found = {str(path): words for path in code if (words := found_in(path, read(path)))}
    assert not found, f"use the words of {WORDS}"


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("kvstore/x.h", "class MailboxClient;  // engine_thread", {"mailbox"}),
        ("kvstore/x.h", 'constexpr auto kRollCall = "attendance";', {"roll_call"}),
        ("kvstore/mailbox.h", "", {"mailbox"}),
        ("python/gradwire/kv.py", "def join(roll_call: str): ...", set()),
        (
            "python/gradwire/launch/x.py",
            'from gradwire import sent_along  # roll_call\nname = "mailbox"',
            {"sent_along"},
        ),
    ],
)
def test_planted_words_are_found(path: str, text: str, words: set[str]) -> None:
    assert found_in(Path(path), text) == words
