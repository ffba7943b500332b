"""Sparse MLA decode: attention of all heads over a list of cache rows, gathered once per 64 heads.

Counted traffic: each selected row once (2*(dv+dr) bytes), its index, the query and the output. Arithmetic per selected
row: 2*H*(dv+dr) FLOP of scores plus 2*H*dv of values, 278 kFLOP at H = 128, so a row's 1152 bytes carry about 242 FLOP
each: above an H200's ridge, and the tensor cores decide at H = 128; at H = 64 the gather does.

Design.
- A program owns 64 heads of one request and walks over its K rows in tiles of 64 with an online softmax in base 2.
  A tile is gathered into shared memory once and used twice: its rows are keys, their leading dv entries are values.
  The two programs of a 128-head request are neighbours in the grid, so the second gather of a row hits the L2.
- 64 x 512 fp32 of output are 128 registers in each of 256 threads, all that fits; hence not more heads a program. The
  latent is split into two halves so that scores and values use the same shared buffers in pieces of a power of two.
- Two tiles alternate: 2 x 72 KiB of rows and 72 KiB of query fill the shared memory. The compiler copies a tile's rows
  asynchronously while the tile before it is multiplied; their indices are fetched one tile ahead.
- K need not be a multiple of 64: missing slots of the last tile read row 0 and score -inf. Fewer than 64 heads use a
  smaller tile with surplus heads masked; widths that are no powers of two are padded in the same way.
"""

import math
import os

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

HEADS = 64  # heads of one program, at most
ROWS = 256 if INTERPRETED else 64  # cache rows of one tile
WARPS = 8
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


def _tile_rows(heads, width):
    """Cache rows of one tile: ROWS, or fewer where tiles and query of padded `width` would not fit shared memory."""
    rows = ROWS
    while rows > 16 and 2 * width * (heads + STAGES * rows) > SHARED_BYTES and not INTERPRETED:
        rows //= 2
    return rows


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
