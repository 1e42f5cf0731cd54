"""The four GPU kernels of the burn-in as PTX text, which the driver compiles: no nvcc, no torch, no toolkit on the nodes.

Names, parameters and arithmetic are fixed in `lab/standins/KERNELS.md`, since the stand-in driver runs native versions of
the same names. PTX ISA 7.0 for sm_80 loads on every driver since CUDA 11.0 and on every GPU from A100 on. All kernels
walk the buffer with a grid-stride loop, so any grid gives the same result.
"""

from __future__ import annotations

#: Bytes of one element, by the kernel family's name.
ELEMENT_BYTES = {"u32": 4, "bf16": 2}

#: Patterns of each family; three integer ones so that stuck bits, address faults and data-dependent ones all show.
PATTERNS = {"u32": (0, 1, 2), "bf16": (0,)}

#: What a caller writes into the 24-byte result record before a check: mismatches, first bad index, checksum.
EMPTY_RECORD = (0, (1 << 64) - 1, 0)

_HEADER = ".version 7.0\n.target sm_80\n.address_size 64\n"

_REGISTERS = """
  .reg .pred %p<8>;
  .reg .b32 %r<40>;
  .reg .b64 %d<24>;
  .reg .f32 %f<2>;
  .reg .b16 %h<4>;
"""

# %d1 buffer, %d2 count, %r1 pattern; %d3 the index, %d5 the stride of the grid.
_INDEX = """
  ld.param.u64 %d1, [p_ptr];
  cvta.to.global.u64 %d1, %d1;
  ld.param.u64 %d2, [p_count];
  ld.param.u32 %r1, [p_pattern];
  ld.param.u32 %r3, [p_nranks];
  mov.u32 %r4, %ctaid.x;
  mov.u32 %r5, %ntid.x;
  mov.u32 %r6, %tid.x;
  mul.wide.u32 %d3, %r4, %r5;
  cvt.u64.u32 %d4, %r6;
  add.u64 %d3, %d3, %d4;
  mov.u32 %r7, %nctaid.x;
  mul.wide.u32 %d5, %r7, %r5;
"""


def _mix32(register: str, scratch: str) -> str:
    """Return the instructions of mix32 on a register, in place: a bijection of 32-bit numbers that looks random."""
    return f"""
  shr.u32 {scratch}, {register}, 16;
  xor.b32 {register}, {register}, {scratch};
  mul.lo.u32 {register}, {register}, 0x7FEB352D;
  shr.u32 {scratch}, {register}, 15;
  xor.b32 {register}, {register}, {scratch};
  mul.lo.u32 {register}, {register}, 0x846CA68B;
  shr.u32 {scratch}, {register}, 16;
  xor.b32 {register}, {register}, {scratch};
"""


# %r20 = mix32(i), %r21 = mix32(i ^ golden) | 1
_TWO_HASHES = f"""
  mov.u32 %r20, %r8;{_mix32("%r20", "%r22")}
  xor.b32 %r21, %r8, 0x9E3779B9;{_mix32("%r21", "%r22")}
  or.b32 %r21, %r21, 1;
"""

_FILL_PARAMS = """(
  .param .u64 p_ptr,
  .param .u64 p_count,
  .param .u32 p_pattern,
  .param .u32 p_rank,
  .param .u32 p_nranks
)"""

_CHECK_PARAMS = """(
  .param .u64 p_ptr,
  .param .u64 p_count,
  .param .u32 p_pattern,
  .param .u32 p_nranks,
  .param .u64 p_result
)"""

_FILL_U32 = f"""
.visible .entry fm_fill_u32{_FILL_PARAMS}
{{{_REGISTERS}{_INDEX}
  ld.param.u32 %r2, [p_rank];
LOOP:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra DONE;
  cvt.u32.u64 %r8, %d3;
  setp.eq.u32 %p2, %r1, 1;
  @%p2 bra ALTERNATE;
  setp.eq.u32 %p2, %r1, 2;
  @%p2 bra RANDOM;
  mul.lo.u32 %r9, %r2, 2654435761;
  add.u32 %r9, %r8, %r9;
  bra STORE;
ALTERNATE:
  add.u32 %r10, %r8, %r2;
  and.b32 %r10, %r10, 1;
  setp.eq.u32 %p3, %r10, 1;
  selp.b32 %r9, 0xAAAAAAAA, 0x55555555, %p3;
  bra STORE;
RANDOM:{_TWO_HASHES}
  mul.lo.u32 %r9, %r2, %r21;
  add.u32 %r9, %r9, %r20;
STORE:
  shl.b64 %d6, %d3, 2;
  add.u64 %d6, %d1, %d6;
  st.global.u32 [%d6], %r9;
  add.u64 %d3, %d3, %d5;
  bra LOOP;
DONE:
  ret;
}}
"""

# %d8 mismatches, %d9 first bad index, %d10 checksum of this thread; %d11 where they are added up.
_RECORD_BEGIN = """
  ld.param.u64 %d11, [p_result];
  cvta.to.global.u64 %d11, %d11;
  mov.u64 %d8, 0;
  mov.u64 %d9, 0xFFFFFFFFFFFFFFFF;
  mov.u64 %d10, 0;
"""

_RECORD_END = """
  red.global.add.u64 [%d11], %d8;
  red.global.min.u64 [%d11+8], %d9;
  red.global.add.u64 [%d11+16], %d10;
  ret;
"""

# Compare %r12 (read) with %r9 (expected) at index %d3, and take it into the checksum: x[i] * (2*i + 1).
_COMPARE = """
  setp.ne.u32 %p4, %r12, %r9;
  @%p4 add.u64 %d8, %d8, 1;
  @%p4 min.u64 %d9, %d9, %d3;
  cvt.u64.u32 %d12, %r12;
  shl.b64 %d13, %d3, 1;
  add.u64 %d13, %d13, 1;
  mul.lo.u64 %d12, %d12, %d13;
  add.u64 %d10, %d10, %d12;
"""

_CHECK_U32 = f"""
.visible .entry fm_check_u32{_CHECK_PARAMS}
{{{_REGISTERS}{_INDEX}{_RECORD_BEGIN}
  sub.u32 %r13, %r3, 1;
  mul.wide.u32 %d14, %r3, %r13;
  shr.u64 %d14, %d14, 1;
  cvt.u32.u64 %r14, %d14;
LOOP:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra DONE;
  cvt.u32.u64 %r8, %d3;
  setp.eq.u32 %p2, %r1, 1;
  @%p2 bra ALTERNATE;
  setp.eq.u32 %p2, %r1, 2;
  @%p2 bra RANDOM;
  mul.lo.u32 %r9, %r3, %r8;
  mul.lo.u32 %r10, %r14, 2654435761;
  add.u32 %r9, %r9, %r10;
  bra LOAD;
ALTERNATE:
  and.b32 %r10, %r8, 1;
  add.u32 %r11, %r3, 1;
  sub.u32 %r11, %r11, %r10;
  shr.u32 %r11, %r11, 1;
  sub.u32 %r10, %r3, %r11;
  mul.lo.u32 %r9, %r11, 0x55555555;
  mul.lo.u32 %r10, %r10, 0xAAAAAAAA;
  add.u32 %r9, %r9, %r10;
  bra LOAD;
RANDOM:{_TWO_HASHES}
  mul.lo.u32 %r9, %r3, %r20;
  mul.lo.u32 %r10, %r14, %r21;
  add.u32 %r9, %r9, %r10;
LOAD:
  shl.b64 %d6, %d3, 2;
  add.u64 %d6, %d1, %d6;
  ld.global.u32 %r12, [%d6];{_COMPARE}
  add.u64 %d3, %d3, %d5;
  bra LOOP;
DONE:{_RECORD_END}}}
"""

# %r15 = m - 1 (m is 8, 4 or 2 by the number of ranks, so that the largest sum stays within 256), %r16 = log2 of m.
_MODULUS = """
  setp.le.u32 %p5, %r3, 36;
  setp.le.u32 %p6, %r3, 85;
  selp.b32 %r15, 3, 1, %p6;
  selp.b32 %r15, 7, %r15, %p5;
  selp.b32 %r16, 2, 1, %p6;
  selp.b32 %r16, 3, %r16, %p5;
  setp.gt.u32 %p7, %r3, 256;
  cvt.u64.u32 %d15, %r3;
"""

# A small whole number becomes bf16 as the upper half of its float32.
_TO_BF16 = """
  cvt.rn.f32.u32 %f1, %r9;
  mov.b32 %r9, %f1;
  shr.u32 %r9, %r9, 16;
"""

_FILL_BF16 = f"""
.visible .entry fm_fill_bf16{_FILL_PARAMS}
{{{_REGISTERS}{_INDEX}
  ld.param.u32 %r2, [p_rank];
  cvt.u64.u32 %d7, %r2;{_MODULUS}
LOOP:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra DONE;
  add.u64 %d16, %d3, %d7;
  @%p7 bra MANY;
  cvt.u32.u64 %r9, %d16;
  and.b32 %r9, %r9, %r15;
  bra STORE;
MANY:
  rem.u64 %d16, %d16, %d15;
  setp.lt.u64 %p2, %d16, 256;
  selp.b32 %r9, 1, 0, %p2;
STORE:{_TO_BF16}
  cvt.u16.u32 %h1, %r9;
  shl.b64 %d6, %d3, 1;
  add.u64 %d6, %d1, %d6;
  st.global.u16 [%d6], %h1;
  add.u64 %d3, %d3, %d5;
  bra LOOP;
DONE:
  ret;
}}
"""

# q = n / m whole turns, each worth m*(m-1)/2, and the k = n mod m ranks that are left over, one by one.
_CHECK_BF16 = f"""
.visible .entry fm_check_bf16{_CHECK_PARAMS}
{{{_REGISTERS}{_INDEX}{_RECORD_BEGIN}{_MODULUS}
  add.u32 %r17, %r15, 1;
  mul.lo.u32 %r18, %r17, %r15;
  shr.u32 %r18, %r18, 1;
  shr.u32 %r19, %r3, %r16;
  mul.lo.u32 %r18, %r18, %r19;
  and.b32 %r19, %r3, %r15;
LOOP:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra DONE;
  mov.u32 %r9, 256;
  @%p7 bra LOAD;
  cvt.u32.u64 %r8, %d3;
  mov.u32 %r9, %r18;
  mov.u32 %r23, 0;
LEFT:
  setp.ge.u32 %p2, %r23, %r19;
  @%p2 bra LOAD;
  add.u32 %r24, %r8, %r23;
  and.b32 %r24, %r24, %r15;
  add.u32 %r9, %r9, %r24;
  add.u32 %r23, %r23, 1;
  bra LEFT;
LOAD:{_TO_BF16}
  shl.b64 %d6, %d3, 1;
  add.u64 %d6, %d1, %d6;
  ld.global.u16 %h1, [%d6];
  cvt.u32.u16 %r12, %h1;{_COMPARE}
  add.u64 %d3, %d3, %d5;
  bra LOOP;
DONE:{_RECORD_END}}}
"""

#: The module that cuModuleLoadData takes (it wants a terminating zero byte, which ctypes adds).
PTX = _HEADER + _FILL_U32 + _CHECK_U32 + _FILL_BF16 + _CHECK_BF16
