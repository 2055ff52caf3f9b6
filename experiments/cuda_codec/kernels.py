"""What do the codecs' kernels need of a GPU: registers, local memory, instructions, and how wide are their accesses?

    python experiments/cuda_codec/kernels.py > experiments/cuda_codec/kernels.csv
    python experiments/cuda_codec/kernels.py --json

Needs no GPU: it reads the kernels that a build has compiled, with `cuobjdump` of the CUDA Toolkit, or of PyPI's
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm. `make build` comes before.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REGISTERS = 65_536  # of a multiprocessor, which has room for 64 warps of 32 threads
WIDTHS = ("128", "64", "32")  # bits of one thread's access; what is less counts as narrow


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture.

    Attributes:
        unit: the .cu file.
        kernel: its work, and what that works on.
        registers: of a thread.
        most_warps: that registers allow on a multiprocessor at once, of 64.
        local_bytes: of a thread's stack, which lies in the device's memory.
        instructions: in all of it; what runs for an element is a part.
        loads_128, ...: instructions that read the device's memory, by bits.
        stores_128, ...: instructions that write there.
    """

    unit: str
    kernel: str
    registers: int
    most_warps: int
    local_bytes: int
    instructions: int
    loads_128: int
    loads_64: int
    loads_32: int
    loads_narrow: int
    stores_128: int
    stores_64: int
    stores_32: int
    stores_narrow: int


def short_name(demangled: str) -> str:
    """The work of a kernel without namespaces and Thrust's wrapping, "EncodeByMost<FloatSource, ToNearest, true>"."""
    bare = re.sub(r"\b(?:\w+::)+", "", demangled)
    for wrapping in ("op_wrapper_t<unsigned long, ", "fold_groups<"):
        _, found, rest = bare.partition(wrapping)
        if found:
            return _first_argument(rest)
    return bare.partition("(")[0]


def _first_argument(text: str) -> str:
    """Up to the comma or bracket that ends the first template argument."""
    depth = 0
    for at, letter in enumerate(text):
        if depth == 0 and letter in ",>":
            return text[:at].strip()
        depth += {"<": 1, ">": -1}.get(letter, 0)
    return text


def resources(text: str) -> dict[str, tuple[int, int]]:
    """Registers and bytes of stack by mangled name, from `cuobjdump -res-usage`."""
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    return {name: (int(registers), int(stack) + int(local)) for name, registers, stack, local in found}


def instructions(text: str) -> dict[str, Counter[str]]:
    """Instructions by mangled name, each with its modifiers, from `cuobjdump -sass`."""
    found: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in text.splitlines():
        if name := re.match(r"\s+Function : (\S+)", line):
            current = found.setdefault(name[1], Counter())
        elif made := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*)", line):
            current[made[1]] += 1
    return found


def accesses(made: Counter[str], what: str) -> dict[str, int]:
    """How many instructions of this kind there are, by bits."""
    counted = dict.fromkeys((*WIDTHS, "narrow"), 0)
    for name, count in made.items():
        opcode, *modifiers = name.split(".")
        if opcode != what:
            continue
        if any(modifier in ("U8", "S8", "U16", "S16") for modifier in modifiers):
            width = "narrow"
        else:
            width = next((width for width in ("128", "64") if width in modifiers), "32")
        counted[width] += count
    return counted


def kernels(unit: str, usage: str, sass: str, names: dict[str, str]) -> Iterator[Kernel]:
    """The kernels of one object file.

    Args:
        unit: the .cu file.
        usage, sass: what cuobjdump says.
        names: demangled ones by mangled ones.
    """
    made = instructions(sass)
    for mangled, (registers, local_bytes) in resources(usage).items():
        if "EmptyKernel" in names[mangled]:  # CUB asks it what was compiled
            continue
        loads, stores = accesses(made[mangled], "LDG"), accesses(made[mangled], "STG")
        yield Kernel(
            unit,
            short_name(names[mangled]),
            registers,
            min(64, REGISTERS // (32 * (-(-registers // 8) * 8))),
            local_bytes,
            made[mangled].total() - made[mangled]["NOP"],  # which fills up the end
            *loads.values(),
            *stores.values(),
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "release", help="build folder. Default: build/release"
    )
    parser.add_argument("--arch", default="sm_90", help="which of the architectures in it. Default: sm_90")
    parser.add_argument("--json", action="store_true", help="write one JSON list. Default: CSV")
    arguments = parser.parse_args()
    folders = [sysconfig.get_path("purelib") + f"/nvidia/{cuda}/bin" for cuda in ("cu13", "cuda_cuobjdump")]
    tools = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    cuobjdump = shutil.which("cuobjdump", path=tools)
    objects = sorted(arguments.build.glob("compress/**/*_cuda.cu.o"))
    if cuobjdump is None:
        parser.error(
            "cuobjdump was not found: put the CUDA Toolkit on PATH, or call `pip install nvidia-cuda-cuobjdump "
            "nvidia-cuda-nvdisasm`"
        )
    if not objects:
        parser.error(
            f"{arguments.build} holds no compiled kernels (compress/**/*_cuda.cu.o): call `make build` where nvcc is"
        )

    def say(*command: str | Path, text: str | None = None) -> str:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, env=os.environ | {"PATH": tools}
        )
        return done.stdout

    found: list[Kernel] = []
    for each in objects:
        usage, sass = (
            say(cuobjdump, what, "-arch", arguments.arch, each) for what in ("-res-usage", "-sass")
        )
        mangled = list(resources(usage))
        names = dict(zip(mangled, say("c++filt", text="\n".join(mangled)).splitlines(), strict=True))
        found += kernels(each.name.removesuffix(".o"), usage, sass, names)
    rows = [asdict(kernel) for kernel in sorted(found, key=lambda kernel: (kernel.unit, kernel.kernel))]
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Kernel)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
