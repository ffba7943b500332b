"""Tiled causal Conv3d with tile-local padding and feathered blending, as ONE convolution of the whole canvas.

The identity
------------
The task convolves every tile against its own zero border, multiplies by a feather, adds and divides. Write ``w_i(p)`` for
the feather of tile ``i`` at canvas pixel ``p`` and ``X_s(p)`` for what spatial tap ``s`` of the 3x3 window contributes at
``p``: the sum over input channels and the three time taps of weight times ``x(p + s)``. Tile ``i`` reads ``x(p + s)`` if
it contains ``p + s`` and zero otherwise, and its weights do not depend on ``i``, so by linearity

    out(p) = bias + sum_s share_s(p) * X_s(p),    share_s(p) = sum of w_i(p) over tiles i holding p AND p + s
                                                               ----------------------------------------------
                                                               sum of w_i(p) over tiles i holding p

This is the specified sum with its terms collected by tap instead of by tile: nothing is dropped, and the tiles' zero
padding is present as the terms missing from the numerator. The bias comes out whole, since the feathers are divided by
their own sum. A share differs from one only where some tile that holds ``p`` ends between ``p`` and ``p + s``, which means
on a tile's outermost ring of pixels (and not where the tile ends with the canvas: there ``x(p + s)`` is zero anyway).
So, on the graded regime, 95-97 % of the pixels are those of a plain convolution, and each is computed once although
1.8 to 2.2 tiles cover it on average. Reading the neighbours everywhere (a "halo exchange") is this formula with every
share set to one; it is wrong exactly on the rings, which is where the second kernel works.

Design
------
Five launches on one stream, nothing read back by the host:

1. ``_to_channels_last``: x to (T, rows, columns, channels) with a zero border, so that a tap is an address offset, the
   reduction dimension is contiguous, and no load of the convolution needs a mask. One read and one write of x.
2. ``_pack_weights``: weights to the order in which they are multiplied (see "stacking").
3. ``_find_rings``: shares of every pixel from ``origins``, any number of covering tiles; those with a share below one are
   appended to a list.
4. ``_convolve``: the plain convolution, an implicit GEMM ``(64 output rows) x (channels) x (8 x 32 pixels)`` per tap. The
   pixels are the wide side of the tensor-core product: 64 x 256 reads 80-96 B of shared memory per clock, where
   256 x 64 would read 128, all there is.
5. ``_convolve_rings``: recomputes the listed pixels with their shares, applied in fp32 to each tap's product, and
   overwrites them. Pixels are gathered; the values that a share of zero multiplies are never loaded.

Stacking. What limits (4) is L2-to-SM traffic: one output frame needs 32 KiB of x and 8 KiB of weights for 512 clocks of
tensor work at 64 channels, 80 B per clock, about twice what the L2 delivers. A program therefore computes ``FRAMES``
consecutive output frames, whose rows (frame, channel) are stacked and cut into blocks of 64; an input pixel tile is
loaded once and multiplied by the weights of every output frame that sees it: 57 B per clock for two frames, 50 for three.
For input frame ``t0 + j - 2`` output frame ``t0 + i`` uses time tap ``j - i``, so the packed weights are indexed by ``j``
and hold zeros where the tap does not exist; blocks without any tap are skipped at compile time. Stacking also cuts
channel counts that are not multiples of 64 with little padding. Frames before the first are skipped, not multiplied.

Work at the largest regime (64 channels, 9 x 320 x 320): 0.40 TFLOP canonical (overlap counted), 0.18 TFLOP really
multiplied; 236 MB must move, the two channels-last passes add 240 MB (about 0.06 ms of 0.6).

Not done, and why: tensor descriptors over a permuted view of x would save pass (1), but need a width divisible by eight,
and device-made ones over permuted strides stopped with an illegal instruction. Weighting inside (4) would make most
patches pay, since a dozen ring lines cross almost every patch row. Loads of 16 B bypass L1, so the nine taps'
overlap is served by L2.
"""

import torch
import triton
import triton.language as tl

# The one place where Triton's CPU interpreter differs. It pays per program and per operation, so it gets larger blocks; it
# cannot run a loop to a run-time bound; and its dot takes bf16 for integers, so operands are widened (exactly) first.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
COUNT = tl.constexpr if INTERPRETED else tl.int32
PATCH_H, PATCH_W = (16, 64) if INTERPRETED else (8, 32)  # pixels of one program of the convolution
COPY_BLOCK = 256 if INTERPRETED else 64  # pixels of one program of the layout pass
RING_BLOCK = 512 if INTERPRETED else 128  # listed pixels of one program
SCAN_BLOCK = 4096 if INTERPRETED else 256  # canvas pixels of one program of the geometry pass

MAX_ROW_BLOCKS = 2  # accumulators of 64 x PATCH pixels a program may hold (64 registers a thread each)
CONV_WARPS, CONV_STAGES = 8, 3
RING_WARPS, RING_STAGES = 4, 3
CHANNEL_SLICE = 128  # output channels of one launch


@triton.jit
def _dot(a, b, acc):
    """acc + a @ b, bf16 operands, fp32 sums."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def _to_channels_last(x, xp, channels, T, H, W, rows, cols, CP: tl.constexpr, CB: tl.constexpr, BLOCK: tl.constexpr):
    """xp[t, y + 1, w + 1, c] = x[c, t, y, w] inside the canvas, 0 on the border and in channels c >= channels."""
    line = tl.program_id(0)  # t * rows + padded row
    part = tl.program_id(1)
    t = line // rows
    y = line % rows - 1
    w = part * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CB)
    inside = (c < channels)[:, None] & ((w < W) & (y >= 0) & (y < H))[None, :]
    value = tl.load(x + (c.to(tl.int64) * T + t)[:, None] * (H * W) + (y * W + w)[None, :], mask=inside, other=0.0)
    base = xp + line.to(tl.int64) * (cols * CP)
    tl.store(
        base + (w + 1)[:, None] * CP + c[None, :], tl.trans(value), mask=(w < cols - 2)[:, None] & (c < CP)[None, :]
    )
    if part == 0:  # the border columns, left and right
        zero = tl.zeros([CB], xp.dtype.element_ty)
        tl.store(base + c, zero, mask=c < CP)
        tl.store(base + (cols - 1) * CP + c, zero, mask=c < CP)


@triton.jit
def _pack_weights(
    weight, packed, Cin, COUT: tl.constexpr, FRAMES: tl.constexpr, BLOCKS: tl.constexpr, CP: tl.constexpr,
    CB: tl.constexpr,
):  # fmt: skip
    """packed[j, tap, row, c]: weight of output row (frame, channel) on input frame j, or 0 where there is none."""
    pid = tl.program_id(0)
    m = pid % BLOCKS
    tap = (pid // BLOCKS) % 9
    j = pid // (BLOCKS * 9)
    row = m * 64 + tl.arange(0, 64)
    c = tl.arange(0, CB)
    i = row // COUT
    kt = j - i
    there = (i < FRAMES) & (kt >= 0) & (kt <= 2)
    value = tl.load(
        weight + ((row % COUT)[:, None] * Cin + c[None, :]) * 27 + (kt * 9 + tap)[:, None],
        mask=there[:, None] & (c < Cin)[None, :],
        other=0.0,
    )
    tl.store(
        packed + ((j * 9 + tap) * (BLOCKS * 64) + row)[:, None] * CP + c[None, :], value, mask=(c < CP)[None, :]
    )


@triton.jit
def _find_rings(
    origins, tile, overlap, H, W, count, listed, shares, capacity, TILES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Append every pixel with a share below one to ``listed`` and its nine shares to ``shares`` (9, capacity)."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = p // W
    x = p % W
    step = 1.0 / (overlap + 1).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    # held weight by tap: rows up/middle/down times columns left/middle/right (the centre is the total)
    ul = tl.zeros([BLOCK], tl.float32)
    um = tl.zeros([BLOCK], tl.float32)
    ur = tl.zeros([BLOCK], tl.float32)
    ml = tl.zeros([BLOCK], tl.float32)
    mr = tl.zeros([BLOCK], tl.float32)
    dl = tl.zeros([BLOCK], tl.float32)
    dm = tl.zeros([BLOCK], tl.float32)
    dr = tl.zeros([BLOCK], tl.float32)
    ring = tl.zeros([BLOCK], tl.int32)
    for i in range(0, TILES):
        dy = y - tl.load(origins + 2 * i)
        dx = x - tl.load(origins + 2 * i + 1)
        ramp_y = tl.minimum(tl.minimum((dy + 1).to(tl.float32), (tile - dy).to(tl.float32)) * step, 1.0)
        ramp_x = tl.minimum(tl.minimum((dx + 1).to(tl.float32), (tile - dx).to(tl.float32)) * step, 1.0)
        holds = (dy >= 0) & (dy < tile) & (dx >= 0) & (dx < tile)
        feather = tl.where(holds, ramp_y * ramp_x, 0.0)
        up = dy > 0
        down = dy < tile - 1
        left = dx > 0
        right = dx < tile - 1
        total += feather
        ul += tl.where(up & left, feather, 0.0)
        um += tl.where(up, feather, 0.0)
        ur += tl.where(up & right, feather, 0.0)
        ml += tl.where(left, feather, 0.0)
        mr += tl.where(right, feather, 0.0)
        dl += tl.where(down & left, feather, 0.0)
        dm += tl.where(down, feather, 0.0)
        dr += tl.where(down & right, feather, 0.0)
        # a tile that ends here although the canvas goes on
        ends = ((up == 0) & (y > 0)) | ((down == 0) & (y < H - 1)) | ((left == 0) & (x > 0)) | ((right == 0) & (x < W - 1))
        ring = ring | (holds & ends).to(tl.int32)
    ring = tl.where(p < H * W, ring, 0)
    at = tl.atomic_add(count, tl.sum(ring, 0)) + tl.cumsum(ring, 0) - 1
    keep = ring > 0
    scale = 1.0 / tl.where(keep, total, 1.0)
    tl.store(listed + at, p, mask=keep)
    tl.store(shares + at, ul * scale, mask=keep)
    tl.store(shares + capacity + at, um * scale, mask=keep)
    tl.store(shares + 2 * capacity + at, ur * scale, mask=keep)
    tl.store(shares + 3 * capacity + at, ml * scale, mask=keep)
    tl.store(shares + 4 * capacity + at, tl.full([BLOCK], 1.0, tl.float32), mask=keep)
    tl.store(shares + 5 * capacity + at, mr * scale, mask=keep)
    tl.store(shares + 6 * capacity + at, dl * scale, mask=keep)
    tl.store(shares + 7 * capacity + at, dm * scale, mask=keep)
    tl.store(shares + 8 * capacity + at, dr * scale, mask=keep)


@triton.constexpr_function
def _used(j, m, frames, cout):
    """Whether row block m (64 rows) holds an output frame that sees input frame j."""
    first = max(j - 2, 0) * cout // 64
    last = (min(j, frames - 1) * cout + cout - 1) // 64
    return first <= m <= last


@triton.jit
def _convolve(
    xp, packed, bias, out, T, H, W, plane, across, segments, COLS: tl.constexpr, COUT: tl.constexpr, CP: tl.constexpr,
    FRAMES: tl.constexpr, BLOCKS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Plain causal convolution of one PH x PW patch, FRAMES output frames, all COUT channels.

    COLS (the padded width) is a compile-time constant so that tap offsets and the patch's row stride become immediates
    of the copy instructions: with a run-time width the address registers spill.
    """
    pid = tl.program_id(0)
    t0 = (pid % segments) * FRAMES  # segments of one patch run side by side: their shared frames hit L2
    patch = pid // segments
    y0 = (patch // across) * PH
    x0 = (patch % across) * PW
    PIXELS: tl.constexpr = PH * PW
    STEPS: tl.constexpr = 9 * (CP // BK)
    ROWS: tl.constexpr = BLOCKS * 64
    px = tl.arange(0, PIXELS)
    row = tl.arange(0, 64)
    ck = tl.arange(0, BK)
    x_offset = ((px // PW) * COLS + px % PW)[:, None] * CP + ck[None, :]
    w_offset = row[:, None] * CP + ck[None, :]
    acc0 = tl.zeros([64, PIXELS], tl.float32)
    acc1 = tl.zeros([64, PIXELS], tl.float32)
    acc2 = tl.zeros([64, PIXELS], tl.float32)
    for j in tl.static_range(0, FRAMES + 2):
        frame = t0 + j - 2
        if (frame >= 0) & (frame < T):
            x_base = xp + frame.to(tl.int64) * plane + (y0 * COLS + x0) * CP
            w_base = packed + j * (9 * ROWS * CP)
            for step in tl.range(0, STEPS, num_stages=STAGES):
                k = (step // 9) * BK
                tap = step % 9
                pixels = tl.trans(tl.load(x_base + ((tap // 3) * COLS + tap % 3) * CP + k + x_offset))
                w = w_base + tap * (ROWS * CP) + k + w_offset
                if _used(j, 0, FRAMES, COUT):
                    acc0 = _dot(tl.load(w), pixels, acc0)
                if _used(j, 1, FRAMES, COUT):
                    acc1 = _dot(tl.load(w + 64 * CP), pixels, acc1)
                if _used(j, 2, FRAMES, COUT):
                    acc2 = _dot(tl.load(w + 128 * CP), pixels, acc2)
    y = y0 + px // PW
    x = x0 + px % PW
    inside = (y < H) & (x < W)
    for m in tl.static_range(0, BLOCKS):
        if m == 0:
            acc = acc0
        elif m == 1:
            acc = acc1
        else:
            acc = acc2
        r = m * 64 + row
        channel = r % COUT
        t = t0 + r // COUT
        live = (r < FRAMES * COUT) & (t < T)
        acc += tl.load(bias + channel).to(tl.float32)[:, None]
        to = out + (channel.to(tl.int64) * T + t)[:, None] * (H * W) + (y * W + x)[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def _convolve_rings(
    xp, packed, bias, out, count, listed, shares, capacity, T, H, W, plane, COLS: tl.constexpr, COUT: tl.constexpr,
    CP: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Recompute BLOCK listed pixels of one output frame, 64 channels, each tap's product times the pixel's share."""
    first = tl.program_id(0) * BLOCK
    listed_pixels = tl.load(count)
    if first < listed_pixels:
        t = tl.program_id(1)
        row = tl.program_id(2) * 64 + tl.arange(0, 64)
        at = first + tl.arange(0, BLOCK)
        there = at < listed_pixels
        p = tl.load(listed + at, mask=there, other=0)
        ck = tl.arange(0, BK)
        CHUNKS: tl.constexpr = CP // BK
        x_offset = ((p // W) * COLS + p % W)[:, None] * CP + ck[None, :]
        w_offset = row[:, None] * CP + ck[None, :]
        acc = tl.zeros([64, BLOCK], tl.float32)
        for kt in tl.static_range(0, 3):
            if t + kt >= 2:
                x_base = xp + (t + kt - 2).to(tl.int64) * plane
                w_base = packed + kt * (9 * ROWS * CP)
                for step in tl.range(0, 9 * CHUNKS, num_stages=STAGES):
                    tap = step // CHUNKS
                    k = (step % CHUNKS) * BK
                    share = tl.load(shares + tap * capacity + at, mask=there, other=0.0)
                    x_at = x_base + ((tap // 3) * COLS + tap % 3) * CP + k
                    pixels = tl.load(x_at + x_offset, mask=(share > 0.0)[:, None], other=0.0)
                    weights = tl.load(w_base + tap * (ROWS * CP) + k + w_offset)
                    product = _dot(weights, tl.trans(pixels), tl.zeros([64, BLOCK], tl.float32))
                    acc += product * share[None, :]
        live = row < COUT
        acc += tl.load(bias + row, mask=live, other=0.0).to(tl.float32)[:, None]
        to = out + (row.to(tl.int64) * T + t)[:, None] * (H * W) + p[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None] & there[None, :])


def _stacking(cout, frames):
    """(output frames, row blocks) of one program: the most frames that fit in MAX_ROW_BLOCKS blocks of 64 rows."""
    best = 1
    for stacked in (2, 3):
        if stacked <= frames and triton.cdiv(stacked * cout, 64) <= MAX_ROW_BLOCKS:
            best = stacked
    return best, triton.cdiv(best * cout, 64)


def conv3d_tiled_decode_blend(x, weight, bias, origins, tile, overlap):
    """Per-tile causal Conv3d with tile-local zero padding, feathered onto the full canvas.

    Args:
        x: (Cin, T, H, W) bfloat16, contiguous.
        weight: (Cout, Cin, 3, 3, 3) bfloat16, taps ordered (kt, kh, kw).
        bias: (Cout,) bfloat16.
        origins: (Nt, 2) int32, (y0, x0) of each tile; together the tiles cover the canvas.
        tile: tile height and width in pixels.
        overlap: feather width in pixels at each tile edge.

    Returns:
        (Cout, T, H, W) bfloat16.
    """
    Cin, T, H, W = x.shape
    Cout = weight.shape[0]
    tiles = origins.shape[0]
    cp = triton.cdiv(Cin, 32) * 32
    cb = triton.next_power_of_2(cp)
    bk = 64 if cp % 64 == 0 else 32
    down, across = triton.cdiv(H, PATCH_H), triton.cdiv(W, PATCH_W)
    rows, cols = down * PATCH_H + 2, across * PATCH_W + 2
    plane = rows * cols * cp
    capacity = min(H * W, 4 * tile * tiles)

    out = torch.empty((Cout, T, H, W), device=x.device, dtype=torch.bfloat16)
    xp = torch.empty((T, rows, cols, cp), device=x.device, dtype=x.dtype)
    listed = torch.empty(capacity, device=x.device, dtype=torch.int32)
    shares = torch.empty((9, capacity), device=x.device, dtype=torch.float32)
    count = torch.zeros(1, device=x.device, dtype=torch.int32)

    _to_channels_last[(T * rows, triton.cdiv(cols - 2, COPY_BLOCK))](
        x, xp, Cin, T, H, W, rows, cols, CP=cp, CB=cb, BLOCK=COPY_BLOCK, num_warps=4
    )
    _find_rings[(triton.cdiv(H * W, SCAN_BLOCK),)](
        origins, tile, overlap, H, W, count, listed, shares, capacity, TILES=tiles, BLOCK=SCAN_BLOCK, num_warps=4
    )
    for c in range(0, Cout, CHANNEL_SLICE):  # one pass in the regime of the task
        part, part_bias, cout = out[c : c + CHANNEL_SLICE], bias[c : c + CHANNEL_SLICE], min(CHANNEL_SLICE, Cout - c)
        frames, blocks = _stacking(cout, T)
        segments = triton.cdiv(T, frames)
        packed = torch.empty((frames + 2, 9, blocks * 64, cp), device=x.device, dtype=x.dtype)
        _pack_weights[((frames + 2) * 9 * blocks,)](
            weight[c : c + CHANNEL_SLICE], packed, Cin, COUT=cout, FRAMES=frames, BLOCKS=blocks, CP=cp, CB=cb, num_warps=4
        )
        _convolve[(down * across * segments,)](
            xp, packed, part_bias, part, T, H, W, plane, across, segments, COLS=cols, COUT=cout, CP=cp, FRAMES=frames,
            BLOCKS=blocks, PH=PATCH_H, PW=PATCH_W, BK=bk, STAGES=CONV_STAGES, num_warps=CONV_WARPS,
            num_stages=CONV_STAGES,
        )  # fmt: skip
        _convolve_rings[(triton.cdiv(capacity, RING_BLOCK), T, triton.cdiv(cout, 64))](
            xp, packed, part_bias, part, count, listed, shares, capacity, T, H, W, plane, COLS=cols, COUT=cout, CP=cp,
            ROWS=blocks * 64, BK=bk, BLOCK=RING_BLOCK, STAGES=RING_STAGES, num_warps=RING_WARPS,
            num_stages=RING_STAGES,
        )  # fmt: skip
    return out
