"""Sparse MLA decode: attention of all heads over a list of cache rows, gathered once per 64 heads.

Counted traffic: each selected row once (2*(dv+dr) bytes), its index, the query and the output. Arithmetic per selected
row: 2*H*(dv+dr) FLOP of scores plus 2*H*dv of values, 278 kFLOP at H = 128, so a row's 1152 bytes carry about 242 FLOP
each: above an H200's ridge, and the tensor cores decide at H = 128; at H = 64 the gather does.

Design, of both kernels below.
- A program owns 64 heads of one request and walks over its K rows in tiles of 64 with an online softmax in base 2.
  A tile is gathered into shared memory once and used twice: its rows are keys, their leading dv entries are values.
  The two programs of a 128-head request are neighbours in the grid, so the second gather of a row hits the L2.
- 64 x 512 fp32 of output are 128 registers in each of 256 threads, all that fits; hence not more heads a program. The
  latent is split into two halves so that scores and values use the same shared buffers in pieces of a power of two.
- Two tiles alternate: 2 x 72 KiB of rows and 72 KiB of query fill the shared memory.
- K need not be a multiple of 64: missing slots of the last tile read row 0 and score -inf.

_attend_kernel is the plain Triton form: any H and widths, and the one that the CPU interpreter runs. Fewer than 64
heads use a smaller tile with surplus heads masked; widths that are no powers of two are padded in the same way. Its
compiled form shows three costs that plain Triton offers no handle on: both warpgroups compute the
same 64 x 64 scores (a product that feeds another one gets its warps along rows only), the copy of the next tile is
issued at the end of an iteration and awaited at the start of the next, and the row indices are loaded just before it.

_attend_hopper_kernel is the same algorithm in Gluon, with layouts and order given by hand: each warpgroup computes half
of the scores, and the next tile's copy starts right behind the scores' tensor-core instructions, so that it has the
scores, the softmax and the values to finish; its indices were fetched a tile earlier. What is left exposed is the
softmax: overlapping it needs two tiles of scores in flight, or warps that specialise.
"""

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
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

HEADS = 64  # heads of one program, at most
ROWS = 256 if INTERPRETED else 64  # cache rows of one tile
WARPS = 8
GLUON = True  # whether the Hopper kernel is used where it applies
STAGES = 2  # tiles in shared memory at a time
SHARED_BYTES = 227 * 1024  # of an H200's SM, for one program


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
def _attend_kernel(
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
def _gather(
    kv, rows_latent, rows_rope, column, column_rope, latent0, latent1, rope, HALF: gl.constexpr, DT: gl.constexpr
):
    """Start copying one tile of cache rows into three shared buffers."""
    at = kv + rows_latent[:, None].to(gl.int64) * DT + column[None, :]
    async_copy.async_copy_global_to_shared(latent0, at)
    async_copy.async_copy_global_to_shared(latent1, at + HALF)
    at_rope = kv + rows_rope[:, None].to(gl.int64) * DT + 2 * HALF + column_rope[None, :]
    async_copy.async_copy_global_to_shared(rope, at_rope)
    async_copy.commit_group()


@gluon.jit
def _attend_hopper_kernel(
    q,
    kv,
    indices,
    out,
    scale,
    K: gl.constexpr,
    H: gl.constexpr,
    HALF: gl.constexpr,
    DR: gl.constexpr,
    HEADS: gl.constexpr,
    ROWS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """As _attend_kernel, for H a multiple of HEADS = 64 and dv = 2 * HALF; Hopper only. Grid: (B * H / HEADS,).

    Order of one tile: its rows have arrived and the values of the tile before are accumulated; start the scores; while
    they run, start the copy of the next tile into the buffers just freed and fetch the indices of the one after it;
    softmax; start the values.
    """
    DT: gl.constexpr = 2 * HALF + DR
    groups: gl.constexpr = H // HEADS
    tiles: gl.constexpr = (K + ROWS - 1) // ROWS
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])  # a warp copies 512 bytes of one row
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])  # 128 bytes of each of four rows
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS // 4], [16, ROWS // (WARPS // 4), 16])
    value: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS // 4], [16, HALF // (WARPS // 4), 16])
    weight: gl.constexpr = gl.DotOperandLayout(0, value, 2)
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)

    b = (gl.program_id(0) // groups).to(gl.int64)
    first_head = (gl.program_id(0) % groups) * HEADS
    head = first_head + gl.arange(0, HEADS, gl.SliceLayout(1, wide))
    column = gl.arange(0, HALF, gl.SliceLayout(0, wide))
    head_rope = first_head + gl.arange(0, HEADS, gl.SliceLayout(1, narrow))
    column_rope = gl.arange(0, DR, gl.SliceLayout(0, narrow))
    at_q = q + b * (H * DT) + head[:, None] * DT + column[None, :]
    q0 = gl.allocate_shared_memory(gl.bfloat16, [HEADS, HALF], shared, gl.load(at_q))
    q1 = gl.allocate_shared_memory(gl.bfloat16, [HEADS, HALF], shared, gl.load(at_q + HALF))
    at_qr = q + b * (H * DT) + head_rope[:, None] * DT + 2 * HALF + column_rope[None, :]
    qr = gl.allocate_shared_memory(gl.bfloat16, [HEADS, DR], shared, gl.load(at_qr))
    k0 = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, HALF], shared)
    k1 = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, HALF], shared)
    kr = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, DR], shared)

    slot = gl.arange(0, ROWS, gl.SliceLayout(1, wide))
    slot_rope = gl.arange(0, ROWS, gl.SliceLayout(1, narrow))
    column_slot = gl.arange(0, ROWS, gl.SliceLayout(0, score))
    listed = indices + b * K
    rows = gl.load(listed + slot, mask=slot < K, other=0)
    rows_rope = gl.load(listed + slot_rope, mask=slot_rope < K, other=0)
    _gather(kv, rows, rows_rope, column, column_rope, k0.index(0), k1.index(0), kr.index(0), HALF, DT)
    rows = gl.load(listed + ROWS + slot, mask=ROWS + slot < K, other=0)
    rows_rope = gl.load(listed + ROWS + slot_rope, mask=ROWS + slot_rope < K, other=0)

    top = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(1, score))
    total = gl.full([HEADS], 0.0, gl.float32, gl.SliceLayout(1, score))
    o0 = warpgroup_mma_init(gl.full([HEADS, HALF], 0.0, gl.float32, value))  # values still being accumulated
    o1 = warpgroup_mma_init(gl.full([HEADS, HALF], 0.0, gl.float32, value))
    zero = gl.full([HEADS, ROWS], 0.0, gl.float32, score)
    for tile in range(tiles):
        here = tile % 2
        there = 1 - here
        sum0, sum1 = warpgroup_mma_wait(0, [o0, o1])
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        s = warpgroup_mma(q0, k0.index(here).permute((1, 0)), zero, use_acc=False, is_async=True)
        s = warpgroup_mma(q1, k1.index(here).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma(qr, kr.index(here).permute((1, 0)), s, is_async=True)
        if tile + 1 < tiles:
            _gather(
                kv, rows, rows_rope, column, column_rope, k0.index(there), k1.index(there), kr.index(there), HALF, DT
            )
        ahead = (tile + 2) * ROWS
        rows = gl.load(listed + ahead + slot, mask=ahead + slot < K, other=0)
        rows_rope = gl.load(listed + ahead + slot_rope, mask=ahead + slot_rope < K, other=0)
        s = warpgroup_mma_wait(0, [s]) * scale
        if K % ROWS != 0:
            s = gl.where((tile * ROWS + column_slot < K)[None, :], s, float("-inf"))
        higher = gl.maximum(top, gl.max(s, 1))
        fade = gl.exp2(top - higher)
        p = gl.exp2(s - higher[:, None])
        total = total * fade + gl.sum(p, 1)
        top = higher
        fade_value = gl.convert_layout(fade, gl.SliceLayout(1, value))[:, None]
        p = gl.convert_layout(p.to(gl.bfloat16), weight)
        o0 = warpgroup_mma(p, k0.index(here), sum0 * fade_value, is_async=True)
        o1 = warpgroup_mma(p, k1.index(here), sum1 * fade_value, is_async=True)

    sum0, sum1 = warpgroup_mma_wait(0, [o0, o1])
    inverse = gl.convert_layout(1.0 / total, gl.SliceLayout(1, value))[:, None]
    at_out = out + b * (H * 2 * HALF) + head[:, None] * (2 * HALF) + column[None, :]
    gl.store(at_out, gl.convert_layout((sum0 * inverse).to(gl.bfloat16), wide))
    gl.store(at_out + HALF, gl.convert_layout((sum1 * inverse).to(gl.bfloat16), wide))


def _tile_rows(heads, width):
    """Cache rows of one tile: ROWS, or fewer where tiles and query of padded `width` would not fit shared memory."""
    rows = ROWS
    while rows > 16 and 2 * width * (heads + STAGES * rows) > SHARED_BYTES and not INTERPRETED:
        rows //= 2
    return rows


def _fits_hopper(q, H, dv, dr):
    """Whether the Gluon kernel applies. This is the one place where the path is chosen."""
    if INTERPRETED or not GLUON or torch.cuda.get_device_capability(q.device)[0] != 9:
        return False
    return H % 64 == 0 and dv == 512 and dr == 64


def sparse_mla_decode(q, kv_cache, indices, dv, scale=None):
    """Attend q (B, H, dv + dr) bf16 over rows `indices` (B, K) int32 of kv_cache (NROWS, dv + dr) bf16.

    `scale` defaults to (dv + dr) ** -0.5. Returns (B, H, dv) bf16.
    """
    q, kv_cache, indices = q.contiguous(), kv_cache.contiguous(), indices.contiguous()
    B, H, DT = q.shape
    K = indices.shape[1]
    scale = DT**-0.5 if scale is None else scale
    out = torch.empty((B, H, dv), device=q.device, dtype=torch.bfloat16)
    half = max(16, triton.next_power_of_2(dv) // 2)
    rope = max(16, triton.next_power_of_2(DT - dv))
    heads = min(HEADS, max(16, triton.next_power_of_2(H)))
    grid = (B * triton.cdiv(H, heads),)
    if _fits_hopper(q, H, dv, DT - dv):
        _attend_hopper_kernel[grid](
            q,
            kv_cache,
            indices,
            out,
            scale * math.log2(math.e),
            K,
            H,
            dv // 2,
            DT - dv,
            HEADS,
            ROWS,
            WARPS,
            num_warps=WARPS,
        )
        return out
    _attend_kernel[grid](
        q,
        kv_cache,
        indices,
        out,
        scale * math.log2(math.e),
        K,
        H,
        dv,
        DT - dv,
        half,
        rope,
        heads,
        _tile_rows(heads, 2 * half + rope),
        num_warps=WARPS if heads == 64 else 4,
        num_stages=STAGES,
    )
    return out
