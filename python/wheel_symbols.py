"""Lets programs of a wheel run on older systems: asks for an older version of a symbol that does the same.

A versioned symbol of libstdc++ that a program was linked with keeps it from starting where libstdc++ is older, even
if an older version of that symbol would do. The linker always takes the newest version. So the wheel's files are
changed after they are linked: in the table of versions that a file needs (.gnu.version_r), the entry of the newer
version gets the name and the hash of the older one. The file's size and all other bytes stay.

Only the pairs in OLDER are changed, and only where the file uses the newer version for no other symbol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WAIT = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"

OLDER = {"GLIBCXX_3.4.30": ("GLIBCXX_3.4.11", frozenset({_WAIT}))}
"""By version: an older one, and the symbols for which that does the same.

condition_variable::wait(): the version of GCC 12 may be left by an exception, which only the cancellation of a thread
throws (pthread_cancel). That of GCC 11 and before ends the process there. Neither gradwire nor the libraries that a
wheel carries cancel threads.
"""

_DYNAMIC_SYMBOLS, _NEEDED_VERSIONS, _SYMBOL_VERSIONS = 11, 0x6FFFFFFE, 0x6FFFFFFF  # types of sections
_HEADER = struct.Struct("<40xQ10xHHH")  # offset, size, number of section headers, and that of their names'
_SECTION = struct.Struct("<II8x8xQQI4x8xQ")  # name, type, offset, size, linked section, size of an entry
_SYMBOL = struct.Struct("<I20x")
_NEED = struct.Struct("<HHIII")  # version of the table, number of entries, library, first entry, next library
_ENTRY = struct.Struct("<IHHII")  # hash, flags, index, name, next entry
_INDEX = 0x7FFF  # of a symbol's version; the other bit says that it is hidden


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class _Version:
    """An entry of .gnu.version_r: at is where it lies in the file."""

    at: int
    library: str
    name: str
    index: int


class _Elf:
    """A 64-bit little-endian ELF file's dynamic symbols and the versions that it needs."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        start, size, count, _ = _HEADER.unpack_from(data)
        headers = [_SECTION.unpack_from(data, start + number * size) for number in range(count)]
        self._sections = [_Section(kind, offset, size, link) for _, kind, offset, size, link, _ in headers]

    def _one(self, kind: int) -> _Section | None:
        return next((section for section in self._sections if section.kind == kind), None)

    def _text(self, table: _Section, offset: int) -> str:
        at = self._sections[table.link].offset + offset
        return self.data[at : self.data.index(0, at)].decode()

    def versions(self) -> Iterator[_Version]:
        needed = self._one(_NEEDED_VERSIONS)
        library = needed.offset if needed else 0
        while needed:
            _, entries, name, first, following = _NEED.unpack_from(self.data, library)
            at = library + first
            for _ in range(entries):
                _, _, index, version, after = _ENTRY.unpack_from(self.data, at)
                yield _Version(at, self._text(needed, name), self._text(needed, version), index)
                at += after
            if not following:
                return
            library += following

    def symbols_of(self, index: int) -> set[str]:
        """Names of the symbols whose version has an index."""
        symbols, versions = self._one(_DYNAMIC_SYMBOLS), self._one(_SYMBOL_VERSIONS)
        if symbols is None or versions is None:
            return set()
        count = versions.size // 2
        indexes = struct.unpack_from(f"<{count}H", self.data, versions.offset)
        return {
            self._text(symbols, _SYMBOL.unpack_from(self.data, symbols.offset + number * _SYMBOL.size)[0])
            for number, found in enumerate(indexes)
            if found & _INDEX == index
        }


def needed_versions(data: bytes) -> set[str]:
    """Returns the versions of symbols that an ELF file needs, such as GLIBC_2.34."""
    return {version.name for version in _Elf(bytearray(data)).versions()}


def is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(6) == b"\x7fELF\x02\x01"  # 64 bits, little endian


def relax(file: Path) -> set[str]:
    """Has an ELF file ask for older versions, as OLDER says; changes it in place.

    Returns:
        The versions that it no longer needs.
    """
    elf = _Elf(bytearray(file.read_bytes()))
    versions = list(elf.versions())
    gone = set()
    for version in versions:
        older, symbols = OLDER.get(version.name, ("", frozenset()))
        same = [other for other in versions if (other.library, other.name) == (version.library, older)]
        if same and elf.symbols_of(version.index) <= symbols:
            hash_, _, _, name, _ = _ENTRY.unpack_from(elf.data, same[0].at)
            _, flags, index, _, after = _ENTRY.unpack_from(elf.data, version.at)
            _ENTRY.pack_into(elf.data, version.at, hash_, flags, index, name, after)
            gone.add(version.name)
    if gone:
        file.write_bytes(elf.data)
    return gone
