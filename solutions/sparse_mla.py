"""Sparse MLA decode: attention of all heads of a request over a list of cache rows.

What is counted, and what decides
---------------------------------
Bytes: each listed row once, 2 (dv + dr), and its index, 4; the query, 2 H (dv + dr), and the result, 2 H dv, of a
request. FLOP of a listed row: 2 H (dv + dr) for its scores and 2 H dv for its values. At H = 128, dv = 512, dr = 64
that is 278 kFLOP on 1152 bytes: 242 FLOP a byte, above the ridge of an H200, so the tensor cores decide. At H = 64 it
is 121, below the ridge, and about half of the gathers are repeats among requests that the L2 may answer.

Design
------
- A program owns 64 heads of one request and walks over its K rows in tiles of 64, with an online softmax in base 2.
  A tile is gathered into shared memory once and used twice: its rows are keys, their leading dv entries are values.
  The two halves of a 128-head request are neighbours in the grid, so the second gather of a row hits the L2.
- 64 x 512 fp32 of output are 128 registers in each of 256 threads: more heads do not fit, nor does a second program.
  The latent is cut into a left and a right half of 256, which serve as keys and values alike.
- The query (72 KiB) and two tiles (2 x 72 KiB) fill the shared memory.

``_attend_hopper`` (Gluon, compute capability 9) gives its three warpgroups different work. Tiles come in pairs:

    _left     scores and softmax of the even tile;   left half of the output, from both tiles
    _right    scores and softmax of the odd tile;    right half of the output, from both tiles
    _gather   cp.async of rows into the half tiles as these become free

so one group's softmax runs under the other's tensor-core instructions. No score is computed twice. What the groups
tell each other of a tile is small: its weights, in bf16, which go where the rotary part of the tile was (nobody needs
it once the scores exist), and the reference of each head's softmax. Barriers of the half tiles (`ready`, `free`) pace
the gather, `p_ready` hands weights over. There is one program a multiprocessor, and it takes one (request, 64 heads)
after the other, so that the next query and its first rows arrive during the last products and the epilogue.

Lazy rescaling. exp2(s - r) may use any reference r near the maximum, since r cancels in the quotient. Here r follows
the running maximum only when that has grown by more than SLACK = 8. A weight is then at most 2**8, harmless in bf16
and in fp32 sums, and the output (128 registers a thread) is rescaled a few times a list instead of with every tile;
otherwise the products of an even and an odd tile queue up in the tensor cores without a wait between them. Whether
any of 64 heads grew is one word for each warp, kept in shared memory beside the references.

``_attend`` is plain Triton: any H and widths, and what the CPU interpreter runs. Fewer than 64 heads use a smaller tile
with surplus heads masked; widths that are no powers of two are padded in the same way. Plain Triton can neither split
the scores among warpgroups nor let one group's softmax pass under the other's products.

What was measured
-----------------
H200, graded shapes, one session, CUDA events, L2 flushed, every output verified; GB/s counted. Columns: H = 128 with
(B, K) = (768, 2048), (512, 4096), (1024, 2048), (768, 3072); H = 64 with (640, 2048).

    this file                                                        2802  2757  2812  2778   4162
    - rescaling with every tile                                      2738  2682  2751  2702   4155
    - half tiles awaited in four parts, rotary query in registers    2525  2457  2538  2483   4097
    - these two, and an L2 prefetch of rows a pair of tiles ahead    1593  1504  1594  1541   2953
    before: no specialised warps, scores split between two groups    1758  1714  1763  1734   3203
    FlashMLA's sparse operator for sm90                              2578  2551  2588  2567   3867

A dash is this file with that change. Finer barriers lost more than an earlier start gained. The prefetch, nine
instructions a row in the gathering group, lost most; why has not been traced.

What limits it, and what would be next
--------------------------------------
At H = 128 these figures are 604 to 627 TFLOP/s, 0.77 to 0.80 of the tensor-core limit (780 TFLOP/s, 3430 to 3620 GB/s
counted). By our count, not by counters, shared memory is at least as busy as the tensor cores: a tile is 1152 cycles
of score and 1024 of value instructions, but operands (144 + 72 KiB), gather (72 KiB) and weights (8 KiB) are 2368
cycles at 128 bytes each, since a 64 x 64 score with both operands in shared memory takes all of its bandwidth. Next
would be less of that traffic. Scores of 64 x 128 would read the query half as often, if a tile of 128 rows fitted; the
query in registers would save a quarter, if there were any left; its rotary part alone, as tried, saves little. At
H = 64 only 0.61 of the tensor limit is used, and what bounds the gather there has not been counted: the first suspect
is its latency, with two tiles of room to hide it.
"""

import functools
import math
import os

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2E = math.log2(math.e)

# The plain kernel.
HEADS = 64  # heads of one program, at most
ROWS = 256 if INTERPRETED else 64  # cache rows of one tile, at most
STAGES = 2  # tiles in shared memory at a time
SHARED_BYTES = 227 * 1024  # of an H200's SM, for one program

# The Hopper kernel. It is written for these widths: they fill registers and shared memory.
TILE = gl.constexpr(64)  # cache rows of one tile, and heads of one program
HALF = gl.constexpr(256)  # dv / 2
ROTARY = gl.constexpr(64)  # dr
SLACK = gl.constexpr(8.0)  # log2 by which a maximum may exceed the softmax reference before the output is rescaled
SCORE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # 64 heads x 64 rows in one warpgroup
VALUE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))  # 64 heads x HALF
# Registers of a thread. The kernel is compiled for 168 in each of 384 threads; the computing groups take over what the
# gathering one leaves: 2 * 232 + 40 = 3 * 168.
REGISTERS = 168
COMPUTE_REGISTERS = gl.constexpr(232)
GATHER_REGISTERS = gl.constexpr(40)


@triton.jit
def _to_bf16(x):
    """Round fp32 to the nearest bf16, ties to even. The interpreter's own cast truncates, so there it is spelt out."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def _dot(a, b, acc):
    """acc + a @ b with bf16 operands and fp32 sums. The interpreter multiplies bf16 as integers, so it gets fp32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    return tl.dot(a, b, acc)


@triton.jit
def _columns(rows, first: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    """(R, padded) entries at row pointers `rows` (R, 1) + `first`; entries from `width` on are zero."""
    column = tl.arange(0, padded)[None, :]
    if width == padded:
        return tl.load(rows + first + column)
    return tl.load(rows + first + column, mask=column < width, other=0.0)


@triton.jit
def _put(rows, first: tl.constexpr, width: tl.constexpr, value, head_exists):
    """Store the leading `width` columns of `value` (R, padded) at row pointers `rows` (R, 1) + `first`."""
    column = tl.arange(0, value.shape[1])[None, :]
    tl.store(rows + first + column, _to_bf16(value), mask=head_exists & (column < width))


@triton.jit
def _attend(
    q,
    kv,
    indices,
    out,
    scale,
    K: tl.constexpr,
    H: tl.constexpr,
    DV: tl.constexpr,
    DR: tl.constexpr,
    HALF: tl.constexpr,
    ROPE: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program: HEADS heads of one request. Grid: (B * ceil(H / HEADS),), head groups fastest.

    `scale` includes log2(e). The latent is cut at HALF (a power of two >= DV / 2); ROPE >= DR is one too.
    """
    DT: tl.constexpr = DV + DR
    groups: tl.constexpr = (H + HEADS - 1) // HEADS
    b = (tl.program_id(0) // groups).to(tl.int64)
    head = (tl.program_id(0) % groups) * HEADS + tl.arange(0, HEADS)
    head_exists = (head < H)[:, None]
    q_rows = q + b * (H * DT) + tl.minimum(head, H - 1)[:, None] * DT
    q0 = _columns(q_rows, 0, HALF, HALF)
    q1 = _columns(q_rows, HALF, DV - HALF, HALF)
    qr = _columns(q_rows, DV, DR, ROPE)

    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    o0 = tl.zeros([HEADS, HALF], tl.float32)
    o1 = tl.zeros([HEADS, HALF], tl.float32)
    slot = tl.arange(0, ROWS)
    listed = indices + b * K
    row = tl.load(listed + slot, mask=slot < K, other=0)
    for first in range(0, K, ROWS):
        following = tl.load(listed + first + ROWS + slot, mask=first + ROWS + slot < K, other=0)
        rows = kv + row.to(tl.int64)[:, None] * DT
        k0 = _columns(rows, 0, HALF, HALF)
        k1 = _columns(rows, HALF, DV - HALF, HALF)
        kr = _columns(rows, DV, DR, ROPE)
        s = _dot(q0, tl.trans(k0), tl.zeros([HEADS, ROWS], tl.float32))
        s = _dot(q1, tl.trans(k1), s)
        s = _dot(qr, tl.trans(kr), s) * scale
        if K % ROWS != 0:
            s = tl.where((first + slot < K)[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        fade = tl.exp2(top - higher)
        p = tl.exp2(s - higher[:, None])
        total = total * fade + tl.sum(p, 1)
        weights = _to_bf16(p)
        o0 = _dot(weights, k0, o0 * fade[:, None])
        o1 = _dot(weights, k1, o1 * fade[:, None])
        top = higher
        row = following

    out_rows = out + b * (H * DV) + head[:, None] * DV
    _put(out_rows, 0, HALF, o0 / total[:, None], head_exists)
    _put(out_rows, HALF, DV - HALF, o1 / total[:, None], head_exists)


@gluon.jit
def _listed_rows(listed, tile, slot, K: gl.constexpr):
    """Row numbers of one tile. Slots past the end repeat the last listed row; _weights gives them no weight."""
    return gl.load(listed + gl.minimum(tile * TILE + slot, K - 1))


@gluon.jit
def _gather(q, kv, indices, items, buffers, barriers, K: gl.constexpr, H: gl.constexpr):
    """Gathering warpgroup: queries and tiles into shared memory as room becomes free.

    Order of a pair, as it is used: left, right half of the even tile; right, left half of the odd one. The rotary part
    travels with the half that is freed by the group which reads weights there.
    """
    q0, q1, qr, k0, k1, kr = buffers
    q_ready, q_free, left_ready, left_free, right_ready, right_free, _p_ready, _done = barriers
    DT: gl.constexpr = 2 * HALF + ROTARY
    groups: gl.constexpr = H // TILE
    pairs: gl.constexpr = (K + 2 * TILE - 1) // (2 * TILE)
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])  # a warp: 128 bytes of each of four rows
    column = gl.arange(0, HALF, gl.SliceLayout(0, copy))[None, :]
    column_rotary = gl.arange(0, ROTARY, gl.SliceLayout(0, copy))[None, :]
    slot = gl.arange(0, TILE, gl.SliceLayout(1, copy))
    turn = 0
    visit = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        b = (item // groups).to(gl.int64)
        listed = indices + b * K
        rows_even = _listed_rows(listed, 0, slot, K)
        rows_odd = _listed_rows(listed, 1, slot, K)
        at = q + item.to(gl.int64) * (TILE * DT) + gl.expand_dims(slot, 1) * DT
        mbarrier.wait(q_free, (visit & 1) ^ 1)
        async_copy.async_copy_global_to_shared(q0.index(0), at + column)
        async_copy.async_copy_global_to_shared(q1.index(0), at + HALF + column)
        async_copy.async_copy_global_to_shared(qr.index(0), at + 2 * HALF + column_rotary)
        async_copy.mbarrier_arrive(q_ready, increment_count=False)
        for pair in range(pairs):
            phase = (turn & 1) ^ 1
            at = kv + gl.expand_dims(rows_even, 1).to(gl.int64) * DT
            rows_even = _listed_rows(listed, 2 * pair + 2, slot, K)  # of the next pair: a whole pair to arrive
            mbarrier.wait(left_free.index(0), phase)
            async_copy.async_copy_global_to_shared(k0.index(0), at + column)
            async_copy.mbarrier_arrive(left_ready.index(0), increment_count=False)
            mbarrier.wait(right_free.index(0), phase)
            async_copy.async_copy_global_to_shared(k1.index(0), at + HALF + column)
            async_copy.async_copy_global_to_shared(kr.index(0), at + 2 * HALF + column_rotary)
            async_copy.mbarrier_arrive(right_ready.index(0), increment_count=False)
            at = kv + gl.expand_dims(rows_odd, 1).to(gl.int64) * DT
            rows_odd = _listed_rows(listed, 2 * pair + 3, slot, K)
            mbarrier.wait(right_free.index(1), phase)
            async_copy.async_copy_global_to_shared(k1.index(1), at + HALF + column)
            async_copy.mbarrier_arrive(right_ready.index(1), increment_count=False)
            mbarrier.wait(left_free.index(1), phase)
            async_copy.async_copy_global_to_shared(k0.index(1), at + column)
            async_copy.async_copy_global_to_shared(kr.index(1), at + 2 * HALF + column_rotary)
            async_copy.mbarrier_arrive(left_ready.index(1), increment_count=False)
            turn += 1
        visit += 1  # noqa: SIM113 (no enumerate in a kernel)


@gluon.jit
def _weights(s, top, scale, first, K: gl.constexpr, NEGATIVE: gl.constexpr):
    """exp2(s * scale - reference) of the tile from slot `first` on, the new reference, exp2(old - new reference).

    `scale` is not negative, so that a maximum may be taken before scaling: NEGATIVE turns the scores around instead.
    """
    if NEGATIVE:
        s = -s
    peak = gl.max(s, 1) * scale
    higher = gl.where(peak > top + SLACK, peak, top)
    p = gl.exp2(s * scale - higher[:, None])
    if K % (2 * TILE) != 0:
        column = gl.arange(0, TILE, gl.SliceLayout(0, SCORE))
        p = gl.where((first + column < K)[None, :], p, 0.0)  # not before: scale = 0 would undo a mask of scores
    return p, higher, gl.exp2(top - higher)


@gluon.jit
def _flag(grew, flags):
    """Store whether any reference grew, one word for each warp's 16 heads: no barrier of its own."""
    each = gl.max(gl.reshape(flags.to(gl.int32), [4, 16]), 1)
    grew.store(each)


@gluon.jit
def _flagged(grew):
    """Read _flag's words back as one scalar, without a barrier: each thread reads all four."""
    return gl.max(grew.load(gl.BlockedLayout([4], [32], [4], [0])), 0) > 0


@gluon.jit
def _opaque_zero(x):
    """0, unknown to the compiler: descriptors that depend on it are not kept in registers across iterations."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _fade(o, fade):
    """o (64, HALF) with each head's row multiplied by `fade` (64,)."""
    return o * gl.convert_layout(fade, gl.SliceLayout(1, VALUE))[:, None]


@gluon.jit
def _finish(o, total, totals, done, mine: gl.constexpr, parity, out_rows):
    """Add up the weights that both groups saw (each only sums its own tiles'), divide, store one half of the output."""
    head_layout: gl.constexpr = gl.SliceLayout(1, VALUE)
    totals.index(mine).store(total)
    mbarrier.arrive(done.index(mine), count=1)
    mbarrier.wait(done.index(1 - mine), parity)
    whole = totals.index(mine).load(head_layout) + totals.index(1 - mine).load(head_layout)
    o = (o * (1.0 / whole)[:, None]).to(gl.bfloat16)
    wide: gl.constexpr = gl.BlockedLayout([2, 8], [8, 4], [4, 1], [1, 0])
    o = gl.convert_layout(o, wide)
    head = gl.arange(0, TILE, gl.SliceLayout(1, wide))
    column = gl.arange(0, HALF, gl.SliceLayout(0, wide))
    gl.store(out_rows + head[:, None] * (2 * HALF) + column[None, :], o)


@gluon.jit
def _left(out, items, scale, buffers, shares, barriers, K: gl.constexpr, NEGATIVE: gl.constexpr):
    """Scores of even tiles, values of the left half of the latent: first from the even tile, then from the odd one."""
    q0, q1, qr, k0, k1, kr = buffers
    tops, grew, totals = shares
    q_ready, q_free, left_ready, left_free, right_ready, _right_free, p_ready, done = barriers
    pairs: gl.constexpr = (K + 2 * TILE - 1) // (2 * TILE)
    head_layout: gl.constexpr = gl.SliceLayout(1, SCORE)
    turn = 0
    visit = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        top = gl.full([TILE], -1e30, gl.float32, head_layout)
        total = gl.full([TILE], 0.0, gl.float32, head_layout)
        zero = gl.full([TILE, TILE], 0.0, gl.float32, SCORE)
        o = gl.full([TILE, HALF], 0.0, gl.float32, VALUE)
        mbarrier.wait(q_ready, visit & 1)
        for pair in range(pairs):
            phase = turn & 1
            even = _opaque_zero(turn)  # buffer of the tile, and the query's only one
            odd = even + 1
            # Scores of the even tile.
            mbarrier.wait(left_ready.index(0), phase)
            fence_async_shared()
            s = warpgroup_mma(q0.index(even), k0.index(even).permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.wait(right_ready.index(0), phase)
            fence_async_shared()
            s = warpgroup_mma(q1.index(even), k1.index(even).permute((1, 0)), s, is_async=True)
            s = warpgroup_mma(qr.index(even), kr.index(even).permute((1, 0)), s, is_async=True)
            s = warpgroup_mma_wait(0, [s])
            mbarrier.arrive(q_free, count=1, pred=pair == pairs - 1)
            # Its weights: to the other group through shared memory, to our own product in registers.
            exact, higher, fade = _weights(s, top, scale, 2 * pair * TILE, K, NEGATIVE)
            p = exact.to(gl.bfloat16)
            kr.index(even).store(p)
            tops.index(0).store(higher)
            _flag(grew.index(0), higher > top)
            fence_async_shared()
            mbarrier.arrive(p_ready.index(0), count=1)
            top = higher
            if _flagged(grew.index(0)):
                o = _fade(o, fade)
            acc = warpgroup_mma(
                gl.convert_layout(p, gl.DotOperandLayout(0, VALUE, 2)), k0.index(even), o, is_async=True
            )
            total = total * fade + gl.sum(exact, 1)
            o = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(left_free.index(0), count=1)
            # The odd tile, with the weights and references of the other group.
            mbarrier.wait(p_ready.index(1), phase)
            fence_async_shared()
            higher = tops.index(1).load(head_layout)
            if _flagged(grew.index(1)):
                fade = gl.exp2(top - higher)
                total = total * fade
                o = _fade(o, fade)
            top = higher
            acc = warpgroup_mma(kr.index(odd), k0.index(odd), o, is_async=True)
            o = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(left_free.index(1), count=1)
            turn += 1
        _finish(o, total, totals, done, 0, visit & 1, out + item.to(gl.int64) * (TILE * 2 * HALF))
        visit += 1  # noqa: SIM113 (no enumerate in a kernel)


@gluon.jit
def _right(out, items, scale, buffers, shares, barriers, K: gl.constexpr, NEGATIVE: gl.constexpr):
    """Scores of odd tiles, values of the right half of the latent: first from the even tile, then from the odd one."""
    q0, q1, qr, k0, k1, kr = buffers
    tops, grew, totals = shares
    q_ready, q_free, left_ready, _left_free, right_ready, right_free, p_ready, done = barriers
    pairs: gl.constexpr = (K + 2 * TILE - 1) // (2 * TILE)
    head_layout: gl.constexpr = gl.SliceLayout(1, SCORE)
    turn = 0
    visit = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        top = gl.full([TILE], -1e30, gl.float32, head_layout)
        total = gl.full([TILE], 0.0, gl.float32, head_layout)
        zero = gl.full([TILE, TILE], 0.0, gl.float32, SCORE)
        o = gl.full([TILE, HALF], 0.0, gl.float32, VALUE)
        mbarrier.wait(q_ready, visit & 1)
        for pair in range(pairs):
            phase = turn & 1
            even = _opaque_zero(turn)  # buffer of the tile, and the query's only one
            odd = even + 1
            # Scores of the odd tile.
            mbarrier.wait(right_ready.index(1), phase)
            fence_async_shared()
            s = warpgroup_mma(q1.index(even), k1.index(odd).permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.wait(left_ready.index(1), phase)
            fence_async_shared()
            s = warpgroup_mma(q0.index(even), k0.index(odd).permute((1, 0)), s, is_async=True)
            s = warpgroup_mma(qr.index(even), kr.index(odd).permute((1, 0)), s, is_async=True)
            s = warpgroup_mma_wait(0, [s])
            mbarrier.arrive(q_free, count=1, pred=pair == pairs - 1)
            # Values of the even tile, with the weights and references of the other group ...
            mbarrier.wait(p_ready.index(0), phase)
            fence_async_shared()
            higher = tops.index(0).load(head_layout)
            if _flagged(grew.index(0)):
                fade = gl.exp2(top - higher)
                total = total * fade
                o = _fade(o, fade)
            top = higher
            acc = warpgroup_mma(kr.index(even), k1.index(even), o, is_async=True)
            # ... and while they run, the weights of the odd one.
            exact, higher, fade = _weights(s, top, scale, (2 * pair + 1) * TILE, K, NEGATIVE)
            p = exact.to(gl.bfloat16)
            kr.index(odd).store(p)
            tops.index(1).store(higher)
            _flag(grew.index(1), higher > top)
            fence_async_shared()
            mbarrier.arrive(p_ready.index(1), count=1)
            top = higher
            if _flagged(grew.index(1)):
                o = warpgroup_mma_wait(0, [acc])
                acc = warpgroup_mma_init(_fade(o, fade))
            acc = warpgroup_mma(
                gl.convert_layout(p, gl.DotOperandLayout(0, VALUE, 2)), k1.index(odd), acc, is_async=True
            )
            total = total * fade + gl.sum(exact, 1)
            top = warpgroup_mma_wait(1, [top])  # the even tile's product is done; `acc` itself is still in the making
            mbarrier.arrive(right_free.index(0), count=1)
            o = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(right_free.index(1), count=1)
            turn += 1
        _finish(o, total, totals, done, 1, visit & 1, out + item.to(gl.int64) * (TILE * 2 * HALF) + HALF)
        visit += 1  # noqa: SIM113 (no enumerate in a kernel)


@gluon.jit(do_not_specialize=["items"])
def _attend_hopper(q, kv, indices, out, scale, items, K: gl.constexpr, H: gl.constexpr, NEGATIVE: gl.constexpr):
    """As _attend, for H a multiple of 64, dv = 512, dr = 64. Grid: any size, items = B * H / 64 are dealt out in turn.

    `scale` is absolute and includes log2(e); NEGATIVE tells its sign. Pointers are multiples of 16 bytes.
    """
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    q0 = gl.allocate_shared_memory(gl.bfloat16, [1, TILE, HALF], swizzled)
    q1 = gl.allocate_shared_memory(gl.bfloat16, [1, TILE, HALF], swizzled)
    qr = gl.allocate_shared_memory(gl.bfloat16, [1, TILE, ROTARY], swizzled)
    k0 = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, HALF], swizzled)
    k1 = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, HALF], swizzled)
    kr = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, ROTARY], swizzled)
    tops = gl.allocate_shared_memory(gl.float32, [2, TILE], plain)  # softmax references after an even, an odd tile
    grew = gl.allocate_shared_memory(gl.int32, [2, 4], plain)  # whether they changed there: _flag
    totals = gl.allocate_shared_memory(gl.float32, [2, TILE], plain)  # sums of weights of _left, of _right
    left_ready = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    right_ready = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    left_free = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    right_free = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    p_ready = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    done = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], bar)
    q_free = gl.allocate_shared_memory(gl.int64, [1], bar)
    for n in gl.static_range(2):
        mbarrier.init(left_ready.index(n), count=128)  # each gathering thread arrives when its own copies have
        mbarrier.init(right_ready.index(n), count=128)
        mbarrier.init(left_free.index(n), count=1)  # by the group that reads this half's values, its last reader
        mbarrier.init(right_free.index(n), count=1)
        mbarrier.init(p_ready.index(n), count=1)
        mbarrier.init(done.index(n), count=1)
    mbarrier.init(q_ready, count=128)
    mbarrier.init(q_free, count=2)
    fence_async_shared()
    buffers = (q0, q1, qr, k0, k1, kr)
    shares = (tops, grew, totals)
    barriers = (q_ready, q_free, left_ready, left_free, right_ready, right_free, p_ready, done)
    gl.warp_specialize(
        [
            (_left, (out, items, scale, buffers, shares, barriers, K, NEGATIVE)),
            (_right, (out, items, scale, buffers, shares, barriers, K, NEGATIVE)),
            (_gather, (q, kv, indices, items, buffers, barriers, K, H)),
        ],
        [4, 4],
        [COMPUTE_REGISTERS, GATHER_REGISTERS],
    )


@functools.cache
def _hopper_programs(device):
    """Programs that `device` runs at a time of the Hopper kernel, one an SM; 0 if it is no such device."""
    if INTERPRETED:
        return 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count if properties.major == 9 else 0


def _tile_rows(heads, width):
    """Cache rows of a plain tile: ROWS, or fewer where query and tiles of padded `width` exceed shared memory."""
    rows = ROWS
    while rows > 16 and 2 * width * (heads + STAGES * rows) > SHARED_BYTES and not INTERPRETED:
        rows //= 2
    return rows


def sparse_mla_decode(q, kv_cache, indices, dv, scale=None):
    """Attend q (B, H, dv + dr) bf16 over rows `indices` (B, K) int32 of kv_cache (NROWS, dv + dr) bf16, all contiguous.

    `scale` defaults to (dv + dr) ** -0.5. Returns (B, H, dv) bf16.
    """
    B, H, DT = q.shape
    K = indices.shape[1]
    scale = LOG2E * (DT**-0.5 if scale is None else scale)
    out = torch.empty((B, H, dv), device=q.device, dtype=torch.bfloat16)
    programs = _hopper_programs(q.device)
    aligned = (q.data_ptr() | kv_cache.data_ptr()) % 16 == 0
    # The one place where the path is chosen.
    if programs and aligned and H % 64 == 0 and dv == 512 and DT == 576:
        items = B * H // 64
        grid = (min(items, programs),)
        _attend_hopper[grid](
            q, kv_cache, indices, out, abs(scale), items, K, H, scale < 0, num_warps=4, maxnreg=REGISTERS
        )
        return out

    half = max(16, triton.next_power_of_2(dv) // 2)
    rotary = max(16, triton.next_power_of_2(DT - dv))
    heads = min(HEADS, max(16, triton.next_power_of_2(H)))
    _attend[(B * triton.cdiv(H, heads),)](
        q,
        kv_cache,
        indices,
        out,
        scale,
        K,
        H,
        dv,
        DT - dv,
        half,
        rotary,
        heads,
        _tile_rows(heads, 2 * half + rotary),
        num_warps=8 if heads == 64 else 4,
        num_stages=STAGES,
    )
    return out
