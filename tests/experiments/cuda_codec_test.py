"""experiments/cuda_codec: what is read of the kernels that a build has compiled."""

from __future__ import annotations

import csv
from pathlib import Path

from python.experiment_files import load

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "cuda_codec"
kernels = load(FOLDER / "kernels.py")

_USAGE = """
Resource usage:
 Common:
  GLOBAL:41 CONSTANT[4]:328
 Function _Z4work:
  REG:71 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:584 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z5empty:
  REG:4 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:529 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
_SASS = """
\t\tFunction : _Z4work
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;       /* 0x00000a00ff017b82 */
                                                                /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ; /* 0x0000000000047981 */
        /*0020*/              @P1 LDG.E.U8 R5, desc[UR4][R2.64] ;           /* 0x0000000000047981 */
        /*0030*/             @!UP0 LDG.E.64 R6, desc[UR4][R2.64] ;           /* 0x0000000000047981 */
        /*0040*/                   STG.E desc[UR4][R2.64], R5 ;              /* 0x0000000000047981 */
        /*0050*/                   BRA 0x50 ;                                /* 0x0000000000047981 */
        /*0060*/                   NOP ;                                     /* 0x0000000000047981 */
\t\tFunction : _Z5empty
        /*0000*/                   EXIT ;                                    /* 0x0000000000047981 */
"""
_FOLDED = (
    "void gradwire::compress::fold_groups<gradwire::compress::EncodeByMost<gradwire::compress::FloatSource, "
    "gradwire::compress::ToNearest, true> >(unsigned long, gradwire::compress::EncodeByMost<...>)"
)
_EACH = (
    "void cub::CUB_300001_SM_900::detail::for_each::static_kernel<cub::policy_hub_t::policy_500_t, unsigned long, "
    "cub::CUB_300001_SM_900::detail::for_each::op_wrapper_t<unsigned long, gradwire::compress::WidenItem, "
    "thrust::counting_iterator<unsigned long, use_default> > >(unsigned long, int)"
)


def test_a_kernel_is_named_by_its_work_and_counted_by_the_width_of_its_accesses() -> None:
    names = {"_Z4work": _FOLDED, "_Z5empty": "void cub::EmptyKernel<void>()"}
    (found,) = kernels.kernels("block_cuda.cu", _USAGE, _SASS, names)
    assert found == kernels.Kernel(
        "block_cuda.cu",
        "EncodeByMost<FloatSource, ToNearest, true>",
        registers=71,
        most_warps=28,
        local_bytes=24,
        instructions=6,
        loads_128=1,
        loads_64=1,
        loads_32=0,
        loads_narrow=1,
        stores_128=0,
        stores_64=0,
        stores_32=1,
        stores_narrow=0,
    )


def test_thrusts_wrapping_is_left_out_of_names() -> None:
    assert kernels.short_name(_EACH) == "WidenItem"


def test_the_table_has_kernels_of_every_unit_and_none_in_local_memory() -> None:
    with (FOLDER / "kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["unit"] for row in rows} == {each.name for each in ROOT.glob("compress/cuda/*.cu")}
    assert [row["kernel"] for row in rows if row["local_bytes"] != "0"] == []
