"""Tiled causal Conv3d with tile-local padding and feathered blending, as ONE convolution of the whole canvas.

The identity
------------
The task convolves every tile against its own zero border, multiplies by a feather, adds and divides. Write ``f_i(p)``
for the feather of tile ``i`` at canvas pixel ``p``, and ``X_s(p)`` for what spatial tap ``s`` of the 3x3 window adds
at ``p``: the sum over input channels and the three time taps of weight times ``x(p + s)``. Tile ``i`` reads ``x(p +
s)`` if it contains ``p + s`` and zero otherwise, and the weights are the same in every tile, so by linearity

    out(p) = bias + sum_s share_s(p) * X_s(p)

                   sum of f_i(p) over the tiles that contain p and p + s
    share_s(p) =   -----------------------------------------------------
                   sum of f_i(p) over the tiles that contain p

This is the specified sum with its terms collected by tap instead of by tile. Nothing is approximated: the zero
padding of the tiles is present as the terms missing from the numerator. The bias comes out whole, since the feathers
are divided by their own sum. A share differs from one only where some tile that contains ``p`` ends between ``p`` and
``p + s``, hence only on a tile's outermost ring of pixels (and not where tile and canvas end together: ``x(p + s)``
is zero there in any case). In the graded regime 95-97 % of the pixels are therefore those of a plain convolution, and
each is computed once although about two tiles cover it. Reading true neighbours everywhere (a "halo exchange") is the
same formula with every share set to one; it is wrong exactly on the rings, and those are what the last kernel is for.

Design
------
Three launches on one stream; the host reads nothing back.

1. ``_prepare``: three independent passes side by side, a range of programs each. ``_scan_rings`` computes the shares
   of every pixel from ``origins``, whatever their number and arrangement, and lists the pixels that have one below
   one. ``_pack`` puts the weights in the order of their use (see "Stacking"). ``_to_channels_last`` copies x to (T,
   rows, columns, channels) with a zero border: a tap becomes an address offset, the reduction dimension is contiguous
   (16-byte copies), and no load of the convolution needs a mask. This copy is nearly all of the launch's time.
2. ``_convolve``: the plain convolution, an implicit GEMM of (64 output rows) x (channels) x (8 x 32 pixels) for each
   tap. Pixels are the wide side of the product, which reads 96 B of shared memory per clock; with the 64 channels as
   the wide side it would be 128 B, all there is.
3. ``_convolve_rings``: computes the listed pixels with their shares, applied in fp32 to each tap's product, and
   overwrites them. Pixels are gathered; a value whose share is zero is not even loaded, as in the reference.

More than 128 output channels are convolved in slices; a later slice packs its weights in a launch of its own.

Rings. A list with one counter for all would need the counter cleared before launch (1), which is another launch, so
each block of SCAN_BLOCK pixels has a list of its own. With S blocks, ``scratch`` holds eleven fp32 arrays: nine shares
and the pixel (int32 bits) at ``block * SCAN_BLOCK + i`` of S * SCAN_BLOCK entries, then the S lengths (int32 bits).
A ring program owns a range of the numbers that pixels would have in one long list. It adds up the lengths and marks
where blocks end in its range (a histogram); the running sum of the marks is a pixel's block, their running maximum the
number of pixels before that block.

The host. A caller who finds the GPU idle waits for Python too, and a launch costs it 50 to 100 us in a slow process.
With five launches, a memset, and the choice of a stacking made anew in each call, between the passes, calls in the
grader took 0.98 ms (median) and 1.19 ms at two shapes where the kernels need 0.54 and 0.91 ms. Of 0.37 ms of Python
in a call (at 9 frames of 320 x 320, without the driver), 0.31 ms came between the first launch and the convolution,
whose choice of a stacking was most of it. Now ``_plan`` keeps what follows from shapes, 0.05 ms are left, and 0.01 ms
between any two launches. The copy of x (0.04 to 0.08 ms) covers the launch of the convolution, and the convolution that
of the rings. Only what precedes the first launch is exposed, or hidden where the GPU is not free earlier.

Stacking. What limits (2) is traffic from L2 to the multiprocessor. At 64 channels one output frame takes 32 KiB of x
and 8 KiB of weights for 512 clocks of tensor work: 80 B per clock, when L2 gives an SM about 32. So a program
computes up to three consecutive output frames: their rows (frame, channel) are stacked and cut into blocks of 64, and
a tile of input pixels is loaded once for all the output frames that see it (50 B per clock for three frames of 64
channels). For input frame ``t0 + j - 2``, output frame ``t0 + i`` uses time tap ``j - i``, so packed weights are
indexed by ``j`` and are zero where that tap does not exist; a block without any tap is left out at compile time.
Stacking also handles channel counts that 64 does not divide: two frames of 96 channels are three full blocks. Frames
before the first are skipped. How many frames to stack follows from the shape, by comparing modelled clocks.

Work at 64 channels, 7 x 320 x 320: 0.31 TFLOP canonical (overlap counted), 0.14 TFLOP multiplied, 0.09 GB in and out
each; the layout pass reads and writes x once more (0.18 GB, about 0.05 ms of a total near 0.5).

Tried on paper or in the compiler, and left: applying shares inside (2) makes most programs pay, since a dozen ring
lines cross a canvas and nearly every patch row meets one. Four row blocks of 64 x 256 need 256 accumulator registers.
A run-time row stride, or a tap loop that the compiler may unroll, spills addresses (up to 197 reloads; none now, 244
registers with three row blocks). Tensor descriptors over a permuted view of x would save its copy, but need a width
divisible by eight, and device-made ones ended in an illegal instruction."""

import functools

import torch
import triton
import triton.language as tl

# The one place where Triton's CPU interpreter differs. It pays per program and per operation, so it gets larger blocks;
# it cannot run a loop to a run-time bound (`_convolve`); and it multiplies bf16 as integers, so `_dot` widens, exactly.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
PATCH_H, PATCH_W = (16, 64) if INTERPRETED else (8, 32)  # pixels of one program of the convolution
COPY_BLOCK = 256 if INTERPRETED else 64  # pixels of one program of the layout pass
RING_BLOCK = 512 if INTERPRETED else 128  # listed pixels of one program
SCAN_BLOCK = 256 if INTERPRETED else 512  # canvas pixels of one program of the geometry pass

MAX_ROW_BLOCKS = 3  # accumulators of 64 x PATCH pixels a program may hold: 64 registers a thread each
CONV_WARPS = 8
CONV_STAGES = {64: 3, 32: 5}  # by channels a step; 56 KiB or 28 KiB a stage with three row blocks
L2_BYTES_PER_CLOCK = 32  # what one SM gets when all read; only weighs one stacking against another
RING_WARPS, RING_STAGES = 4, 3
CHANNEL_SLICE = 128  # output channels of one launch


@triton.jit
def _dot(a, b, acc):
    """acc + a @ b, bf16 operands, fp32 sums."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def _scan_rings(
    block, origins, scratch, tile, step, H: tl.constexpr, W: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
    SCANS: tl.constexpr,
):  # fmt: skip
    """List the pixels of a block of the canvas that have a share below one: see "Rings" for where in ``scratch``.

    ``step`` is 1 / (overlap + 1), the slope of the feather.
    """
    p = block * BLOCK + tl.arange(0, BLOCK)
    y = p // W
    x = p % W
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
    for i in range(TILES):
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
        ends_y = ((dy == 0) & (y > 0)) | ((dy == tile - 1) & (y < H - 1))
        ends_x = ((dx == 0) & (x > 0)) | ((dx == tile - 1) & (x < W - 1))
        ring = ring | (holds & (ends_y | ends_x)).to(tl.int32)
    ring = tl.where(p < H * W, ring, 0)
    CAPACITY: tl.constexpr = SCANS * BLOCK
    tl.store(scratch + 10 * CAPACITY + block, tl.sum(ring, 0).to(tl.float32, bitcast=True))
    at = scratch + block * BLOCK + tl.cumsum(ring, 0) - 1
    keep = ring > 0
    scale = 1.0 / tl.where(keep, total, 1.0)
    tl.store(at, ul * scale, mask=keep)
    tl.store(at + CAPACITY, um * scale, mask=keep)
    tl.store(at + 2 * CAPACITY, ur * scale, mask=keep)
    tl.store(at + 3 * CAPACITY, ml * scale, mask=keep)
    tl.store(at + 4 * CAPACITY, tl.full([BLOCK], 1.0, tl.float32), mask=keep)
    tl.store(at + 5 * CAPACITY, mr * scale, mask=keep)
    tl.store(at + 6 * CAPACITY, dl * scale, mask=keep)
    tl.store(at + 7 * CAPACITY, dm * scale, mask=keep)
    tl.store(at + 8 * CAPACITY, dr * scale, mask=keep)
    tl.store(at + 9 * CAPACITY, p.to(tl.float32, bitcast=True), mask=keep)


@triton.jit
def _pack(
    block, weight, packed, CIN: tl.constexpr, COUT: tl.constexpr, FRAMES: tl.constexpr, BLOCKS: tl.constexpr,
    CP: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """packed[j, tap, row, c]: weight of output row (frame, channel) on input frame j, or 0 where there is none."""
    m = block % BLOCKS
    tap = (block // BLOCKS) % 9
    j = block // (BLOCKS * 9)
    row = m * 64 + tl.arange(0, 64)
    c = tl.arange(0, CB)
    i = row // COUT
    kt = j - i
    there = (i < FRAMES) & (kt >= 0) & (kt <= 2)
    value = tl.load(
        weight + ((row % COUT)[:, None] * CIN + c[None, :]) * 27 + (kt * 9 + tap)[:, None],
        mask=there[:, None] & (c < CIN)[None, :],
        other=0.0,
    )
    tl.store(packed + ((j * 9 + tap) * (BLOCKS * 64) + row)[:, None] * CP + c[None, :], value, mask=(c < CP)[None, :])


@triton.jit
def _to_channels_last(
    block, x, xp, CIN: tl.constexpr, T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, CP: tl.constexpr, CB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """xp[t, y + 1, w + 1, c] = x[c, t, y, w] inside the canvas, 0 on the border and in channels c >= CIN."""
    line = block % (T * ROWS)  # t * ROWS + padded row
    part = block // (T * ROWS)
    t = line // ROWS
    y = line % ROWS - 1
    w = part * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CB)
    inside = (c < CIN)[:, None] & ((w < W) & (y >= 0) & (y < H))[None, :]
    value = tl.load(x + (c.to(tl.int64) * T + t)[:, None] * (H * W) + (y * W + w)[None, :], mask=inside, other=0.0)
    base = xp + line.to(tl.int64) * (COLS * CP)
    tl.store(
        base + (w + 1)[:, None] * CP + c[None, :], tl.trans(value), mask=(w < COLS - 2)[:, None] & (c < CP)[None, :]
    )
    if part == 0:  # the border columns, left and right
        zero = tl.zeros([CB], xp.dtype.element_ty)
        tl.store(base + c, zero, mask=c < CP)
        tl.store(base + (COLS - 1) * CP + c, zero, mask=c < CP)


@triton.jit
def _prepare(
    x, weight, origins, xp, packed, scratch, tile, step, CIN: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CP: tl.constexpr, CB: tl.constexpr, COUT: tl.constexpr,
    FRAMES: tl.constexpr, BLOCKS: tl.constexpr, TILES: tl.constexpr, SCANS: tl.constexpr, SCAN: tl.constexpr,
    COPY: tl.constexpr,
):  # fmt: skip
    """All that comes before the convolution; the program decides which. Those that take longest come first."""
    PACKS: tl.constexpr = (FRAMES + 2) * 9 * BLOCKS
    pid = tl.program_id(0)
    if pid < SCANS:
        _scan_rings(pid, origins, scratch, tile, step, H, W, TILES, SCAN, SCANS)
    elif pid < SCANS + PACKS:
        _pack(pid - SCANS, weight, packed, CIN, COUT, FRAMES, BLOCKS, CP, CB)
    else:
        _to_channels_last(pid - (SCANS + PACKS), x, xp, CIN, T, H, W, ROWS, COLS, CP, CB, COPY)


@triton.jit
def _pack_weights(
    weight, packed, CIN: tl.constexpr, COUT: tl.constexpr, FRAMES: tl.constexpr, BLOCKS: tl.constexpr,
    CP: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """The weights of a second or later slice of output channels."""
    _pack(tl.program_id(0), weight, packed, CIN, COUT, FRAMES, BLOCKS, CP, CB)


@triton.constexpr_function
def _used(j, m, frames, cout):
    """Whether row block m (64 rows) holds an output frame that sees input frame j."""
    first = max(j - 2, 0) * cout // 64
    last = (min(j, frames - 1) * cout + cout - 1) // 64
    return first <= m <= last


@triton.jit
def _convolve(
    xp, packed, bias, out, T, H, W, plane, across, segments, steps, COLS: tl.constexpr, COUT: tl.constexpr,
    CP: tl.constexpr, FRAMES: tl.constexpr, BLOCKS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Plain causal convolution of one PH x PW patch, FRAMES output frames, all COUT channels.

    COLS (the padded width) is a compile-time constant, so that the patch's row stride becomes an immediate of the copy
    instructions: with a run-time width the address registers spill. The number of steps a frame (taps times channel
    chunks) is a run-time value for the opposite reason: the compiler unrolls a loop of 18 steps, then spills addresses.
    """
    pid = tl.program_id(0)
    t0 = (pid % segments) * FRAMES  # segments of one patch run side by side: their shared frames hit L2
    patch = pid // segments
    y0 = (patch // across) * PH
    x0 = (patch % across) * PW
    PIXELS: tl.constexpr = PH * PW
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
            for step in tl.range(0, 9 * (CP // BK) if INTERPRETED else steps, num_stages=STAGES):
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
def _larger(a, b):
    """Of a running maximum."""
    return tl.maximum(a, b)


@triton.jit
def _convolve_rings(
    xp, packed, bias, out, scratch, T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PLANE: tl.constexpr,
    COLS: tl.constexpr, COUT: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr,
    SCANS: tl.constexpr, SCAN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Recompute BLOCK listed pixels of one output frame, 64 channels, each tap's product times the pixel's share."""
    CAPACITY: tl.constexpr = SCANS * SCAN
    start = tl.program_id(0) * BLOCK  # pixels are numbered through all the blocks of the canvas
    lane = tl.arange(0, BLOCK)
    # passed[i]: blocks whose pixels end where number start + i begins; all that end earlier count at i = 0
    passed = tl.zeros([BLOCK], tl.int32)
    listed = 0
    earlier = 0  # pixels of the blocks that end at start or earlier
    for first in range(0, SCANS, BLOCK):
        here = tl.load(scratch + 10 * CAPACITY + first + lane, mask=first + lane < SCANS, other=0.0)
        here = here.to(tl.int32, bitcast=True)
        ends = listed + tl.cumsum(here, 0) - start
        passed += tl.histogram(tl.minimum(tl.maximum(ends, 0), BLOCK - 1), BLOCK, mask=ends < BLOCK)
        earlier = tl.maximum(earlier, tl.max(tl.where(ends <= 0, ends + start, 0), 0))
        listed += tl.sum(here, 0)
    if start < listed:
        there = start + lane < listed
        begins = tl.where(lane == 0, earlier, tl.where(passed > 0, start + lane, 0))
        before = tl.associative_scan(begins, 0, _larger)
        block = tl.cumsum(passed, 0)
        at = tl.where(there, block * SCAN + (start + lane - before), 0)
        t = tl.program_id(1)
        row = tl.program_id(2) * 64 + tl.arange(0, 64)
        p = tl.load(scratch + 9 * CAPACITY + at, mask=there, other=0.0).to(tl.int32, bitcast=True)
        ck = tl.arange(0, BK)
        CHUNKS: tl.constexpr = CP // BK
        x_offset = ((p // W) * COLS + p % W)[:, None] * CP + ck[None, :]
        w_offset = row[:, None] * CP + ck[None, :]
        acc = tl.zeros([64, BLOCK], tl.float32)
        for kt in tl.static_range(0, 3):
            if t + kt >= 2:
                x_base = xp + (t + kt - 2).to(tl.int64) * PLANE
                w_base = packed + kt * (9 * ROWS * CP)
                for step in tl.range(0, 9 * CHUNKS, num_stages=STAGES):
                    tap = step // CHUNKS
                    k = (step % CHUNKS) * BK
                    share = tl.load(scratch + tap * CAPACITY + at, mask=there, other=0.0)
                    x_at = x_base + ((tap // 3) * COLS + tap % 3) * CP + k
                    pixels = tl.load(x_at + x_offset, mask=(share > 0.0)[:, None], other=0.0)
                    weights = tl.load(w_base + tap * (ROWS * CP) + k + w_offset)
                    product = _dot(weights, tl.trans(pixels), tl.zeros([64, BLOCK], tl.float32))
                    acc += product * share[None, :]
        live = row < COUT
        acc += tl.load(bias + row, mask=live, other=0.0).to(tl.float32)[:, None]
        to = out + (row.to(tl.int64) * T + t)[:, None] * (H * W) + p[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None] & there[None, :])


def _clocks(frames, blocks, cout, total):
    """Modelled clocks of one patch for each tap and 64 channels: the larger of tensor work and L2 traffic, by frame."""
    clocks = 0
    for t0 in range(0, total, frames):
        for j in range(max(2 - t0, 0), min(frames + 2, total - t0 + 2)):
            used = sum(_used(j, m, frames, cout) for m in range(blocks))
            clocks += max(used * 512, (PATCH_H * PATCH_W * 128 + used * 64 * 128) // L2_BYTES_PER_CLOCK)
    return clocks


def _stacking(cout, total):
    """(output frames, row blocks) of one program for `total` frames of `cout` channels: the cheapest that fits."""
    options = [(frames, triton.cdiv(frames * cout, 64)) for frames in (1, 2, 3)]
    options = [option for option in options if option[1] <= MAX_ROW_BLOCKS]
    return min(options, key=lambda option: _clocks(*option, cout, total))


@functools.cache
def _plan(Cin, Cout, T, H, W, tile, tiles):
    """What follows from shapes: sizes of the buffers, then launchers with their scalars and constants, by slice.

    Returns:
        (shape of xp, number of scratch words, launcher of `_prepare`, its constants, slices). A slice of output
        channels is (first, end, shape of packed, and launcher and constants of `_pack_weights`, launcher, scalars and
        constants of `_convolve`, launcher and constants of `_convolve_rings`).
    """
    cp = triton.cdiv(Cin, 32) * 32
    cb = triton.next_power_of_2(cp)
    bk = 64 if cp % 64 == 0 else 32
    down, across = triton.cdiv(H, PATCH_H), triton.cdiv(W, PATCH_W)
    rows, cols = down * PATCH_H + 2, across * PATCH_W + 2
    plane = rows * cols * cp
    scans = triton.cdiv(H * W, SCAN_BLOCK)
    ring_blocks = triton.cdiv(min(H * W, 4 * tile * tiles), RING_BLOCK)
    slices = []
    for c in range(0, Cout, CHANNEL_SLICE):  # one in the regime of the task
        cout = min(CHANNEL_SLICE, Cout - c)
        frames, blocks = _stacking(cout, T)
        segments = triton.cdiv(T, frames)
        packs = (frames + 2) * 9 * blocks
        stacked = {"CIN": Cin, "COUT": cout, "FRAMES": frames, "BLOCKS": blocks, "CP": cp, "CB": cb, "num_warps": 4}
        scalars = T, H, W, plane, across, segments, 9 * (cp // bk)
        convolve = {
            "COLS": cols, "COUT": cout, "CP": cp, "FRAMES": frames, "BLOCKS": blocks, "PH": PATCH_H, "PW": PATCH_W,
            "BK": bk, "STAGES": CONV_STAGES[bk], "num_warps": CONV_WARPS, "num_stages": CONV_STAGES[bk],
        }  # fmt: skip
        rings = {
            "T": T, "H": H, "W": W, "PLANE": plane, "COLS": cols, "COUT": cout, "CP": cp, "ROWS": blocks * 64,
            "BK": bk, "SCANS": scans, "SCAN": SCAN_BLOCK, "BLOCK": RING_BLOCK, "STAGES": RING_STAGES,
            "num_warps": RING_WARPS, "num_stages": RING_STAGES,
        }  # fmt: skip
        slices.append((
            c, c + cout, (frames + 2, 9, blocks * 64, cp), _pack_weights[(packs,)], stacked,
            _convolve[(down * across * segments,)], scalars, convolve,
            _convolve_rings[(ring_blocks, T, triton.cdiv(cout, 64))], rings,
        ))  # fmt: skip
        if c == 0:
            copies = T * rows * triton.cdiv(cols - 2, COPY_BLOCK)
            prepare = _prepare[(scans + packs + copies,)]
            prepared = stacked | {
                "T": T, "H": H, "W": W, "ROWS": rows, "COLS": cols, "TILES": tiles, "SCANS": scans, "SCAN": SCAN_BLOCK,
                "COPY": COPY_BLOCK,
            }  # fmt: skip
    return (T, rows, cols, cp), 10 * scans * SCAN_BLOCK + scans, prepare, prepared, slices


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
    xp_shape, words, prepare, prepared, slices = _plan(Cin, Cout, T, H, W, tile, origins.shape[0])
    out = x.new_empty((Cout, T, H, W))
    xp = x.new_empty(xp_shape)
    scratch = x.new_empty(words, dtype=torch.float32)
    for first, end, shape, pack, stacked, convolve, scalars, convolved, rings, ringed in slices:
        packed = x.new_empty(shape)
        part, part_bias = (out, bias) if len(slices) == 1 else (out[first:end], bias[first:end])
        if first == 0:
            prepare(x, weight, origins, xp, packed, scratch, tile, 1.0 / (overlap + 1), **prepared)
        else:
            pack(weight[first:end], packed, **stacked)
        convolve(xp, packed, part_bias, part, *scalars, **convolved)
        rings(xp, packed, part_bias, part, scratch, **ringed)
    return out
