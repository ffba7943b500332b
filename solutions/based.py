"""Based forward: causal attention with weights 1 + s + s^2 / 2, as linear attention whose state never leaves registers.

What is counted, and what is done
---------------------------------
The canonical count is 4 P V + 2 * 64 (K + V) FLOP a token and head, P = 1 + K + K^2. Unique traffic is q, k, v and
out, 4 (K + V) bytes a token and head: 275 FLOP a byte at K = 16, V = 128 and 100 at K = 8. Of the K^2 products
x[a] x[b] little more than half differ, so less is multiplied than counted, and bytes come first as a limit in both
cases: 64 tokens of a head with 128 columns are 36 KiB at K = 16, or about 2200 clocks of an SM's share of memory,
and 1570 clocks of its tensor cores.

Features, by cyclic distance. With indices modulo K, c_0 = 1/2 and all other c_d = 1,

    (q . k)^2 / 2 = sum_{d < K/2} c_d sum_a (q_a q_{a+d}) (k_a k_{a+d}) + sum_{a < K/2} (q_a q_{a+K/2}) (k_a k_{a+K/2})

so the features of distance d are the row times itself rotated by d: K products at once and no table of pairs. The
queries carry c_0. A row of features is then

    main (K^2 / 2)   d = 0 .. K/2 - 1
    tail (2 K)       d = K/2 (K/2 products), 1, zeros, and x itself

160 at K = 16 (153 differ, 224 in three blocks of 64 and a linear one), 48 at K = 8. Queries are scaled in fp32 and
rounded once; then one bf16 product, or two for squares, makes a feature.

Design
------
``_forward_hopper`` (Gluon, compute capability 9) is the only launch. A program owns one head and 64 or 128 columns of
V, and walks the sequence in chunks of 64 tokens. Its warpgroups have different work:

    _builder    copies q, k, v in by TMA; features, weights inside the chunk and row sums, into shared memory
    _consumer   one for every 64 columns of V; nothing but wgmma, and the output

- Transposed state. A consumer keeps state^T, 64 columns of V x features, as fp32 accumulators. Its bf16 copy is,
  register for register, the left operand of the next chunk's product, which gives out^T. So a state that changes with
  every chunk never passes through shared memory, and features are always the right operand, which has to be there:

      out^T   = bf16(state^T) @ phi(q)^T + v^T @ weights^T
      state^T = state^T + v^T @ phi(k)

  All five products of a chunk (main and tail, twice, and the weights) are issued at once; while they run, the
  chunk before is divided by its row sums, transposed by the store to shared memory, and sent off.
- Features in registers. A thread takes a row of 16 (or 8), packed in 32-bit words, and makes one half of its features:
  rotations by an even distance rename registers, by an odd one they are a shift, and a product is one instruction for
  two. ``HALVES_*`` write rows into wgmma's swizzled tiles, 16 bytes at a time and without bank conflicts.
- Row sums in the builder. They need no feature map: over the past, sum_j s^2 is scale^2 q^T (sum_j k_j k_j^T) q. The
  fp32 form is split into a high and a low bf16 part for its product, since an error of a denominator is an error of
  the whole row. That is 20 mma.sync a chunk and warp, beside 8 for the scores, and saves two kernels that read q and k
  again.
- Barriers. ``loaded`` (q, k) paces the builder; ``built`` and ``used`` hand features back and forth, ``arrived`` and
  ``left`` values; ``norms`` is a ring of four chunks, more than can be on their way. Everything that generic stores
  put where wgmma or TMA reads is followed by a proxy fence of each storing thread, a barrier among them, and then one
  arrival.
- With 128 columns (384 threads of 168 registers; consumers take 208 at K = 16) one program fills an SM. With 64 there
  are two, which leaves one buffer of features at K = 16.

The plain path (three Triton launches) is what the CPU interpreter runs, and serves what the Hopper kernel does not:
T = 64, H K < 16, tensors that start off 16 bytes, other devices. ``_segments`` sums k k^T and k over SEGMENT tokens and
transposes k; ``_normaliser`` makes 1 / (row sum); ``_forward`` holds the state in three groups of 64 features (lo lo,
hi lo, hi hi halves of a row) and a linear one, and builds key features in registers in an operand's layout.

The host. One launch; ``_hopper_plan`` keeps what follows from shapes, so a call makes one output, four descriptors
(about 1 us each; 6 us by ``from_tensor`` on views) and the launch.

What was measured
-----------------
H200, graded shapes, one session, CUDA events, L2 flushed, every output verified; TFLOP/s counted. Columns: K = 16,
V = 128 with (B, T, H) = (4, 16384, 32), (8, 8192, 32), (8, 16384, 16); V = 64; K = 8 with V = 128, both (8, 16384, 32).

    this kernel                                         641  644  642  461  325
    split: the same roles, row sums by two launches     429  428  429  263  179
    overlap: no roles, features made under wgmma        349  355  350  293  153
    plain path, two stages, 64 columns                  224  223  224  194  111
    flash-linear-attention 0.6.0, its best               26   32   26   26    9

Relative error 2.3e-3 (K = 8: 2.5e-3). Milliseconds of this kernel: 0.518, 0.515, 0.517, 0.729, 0.708. What was lost:

- overlap: eight warps that all do everything, features double-buffered. Of the first shape _segments takes 0.08,
  _normaliser 0.21 and the rest 0.66 ms. Each warp interleaves some 670 instructions a chunk with its wgmma.
- Row sums in launches of their own: (0.15 + 0.41) ms at V = 64 and (0.15 + 0.39) ms at K = 8, which is most
  of what the whole kernel takes now. In ``_forward``, where state and row sums share a thread's registers, they spill.
- Plain: a third stage gives 241 on the first shape; at K = 8, 128 columns give 143 (kept, both), and chunks of 128 with
  eight warps 138 to 176. It builds features once for every 64 columns, with the state as right operand, through shared
  memory, and 224 features instead of 160.

What limits it, and what would be next
--------------------------------------
0.62 of the limit on the first shape: 1.21 GB in 0.518 ms are 2.3 TB/s (1.8 at V = 64, 3.2 at K = 8). At K = 16
neither memory nor tensor cores are busy: 128 programs on 132 SMs take 2.0 us a chunk, some 3500 clocks, with 1570 of
tensor work. What remains is latency and instruction issue: a consumer's chunk is a chain of conversion (112
accumulators a thread), products and a wait, and the builder's four warps have one chunk at a time in work, 28
mma.sync and all features in each. Which of the two is the longer has not been counted. At K = 16 the machine code
reloads 4 spilled registers with 128 columns and 21 with 64.
Next, in this order:

- V = 64: a builder's work serves 64 columns instead of 128, and no other head can share it. Beside consumers of 192
  registers it has 64, hence the 21 reloads; a consumer that does not defer its output would leave it more.
- A second builder warpgroup, chunks alternating; registers would have to come from the consumers.
- Few heads: 64 of them fill half of the SMs. Splitting T needs a first pass for the states at the cuts.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

# The Hopper kernel. Tables are by K and columns of V of a program.
HOPPER = True  # whether it is used where it applies
COLUMNS = 128  # columns of V of one program, at most: 64 or 128
STAGES = 3  # chunks of inputs in shared memory, at least 2
# Chunks of features in shared memory: two, where the second does not cost a program on the SM.
BUFFERS = {(16, 128): 2, (16, 64): 1, (8, 128): 2, (8, 64): 2}
# Registers of a consumer's thread, and of every thread (by columns) before the builder hands some over.
REGISTERS = {(16, 128): 208, (16, 64): 192, (8, 128): 160, (8, 64): 152}
COMPILED_REGISTERS = {128: 168, 64: 128}

# The plain kernels. The interpreter computes on bf16 as on integers, so `_dot` and `_load` widen operands first, which
# is exact; and it pays per program and per operation, so it gets larger blocks.
STEP = 128 if INTERPRETED else 64  # tokens of one step, at most
SEGMENT = 256 if INTERPRETED else 512  # tokens of one program of the normaliser, at most
VALUES = {16: 128 if INTERPRETED else 64, 8: 128}  # columns of V of one program, at most, by K
FORWARD_WARPS, FORWARD_STAGES = 4, 3
SEGMENT_WARPS, SEGMENT_STAGES = 4, 2

CHUNK = gl.constexpr(64)  # tokens of one step of the Hopper kernel; the layouts below hold for 64
SCORE = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]))  # 64 rows in four warps, mma.sync
LEFT = gl.constexpr(gl.DotOperandLayout(0, SCORE.value, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SCORE.value, 2))
SW32 = gl.NVMMASharedLayout(32, 16, 2)  # swizzles of a row of 32 and of 128 bytes, for copies and products
SW128 = gl.NVMMASharedLayout(128, 16, 2)

# Where the builder writes features, as 32-bit words of two: its row 128 h + 64 s + token is half h of the features of
# a token's query (s = 0) or key (s = 1), and in shared memory the two operands of a chunk follow one another, 64 rows
# each, swizzled as wgmma reads them. Bases of the address, from its lowest bit: (row, word).
HALVES_256 = gl.constexpr(
    gl.SharedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 4], [2, 8], [4, 16], [8, 0], [16, 0], [32, 0], [128, 0], [64, 0]]
    )
)  # features of 256 bytes lie in two tiles, 128 bytes of every row in each
HALVES_64 = gl.constexpr(
    gl.SharedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [128, 0], [1, 0], [2, 4], [132, 0], [8, 0], [16, 0], [32, 0], [64, 0]]
    )
)
HALVES_32 = gl.constexpr(
    gl.SharedLinearLayout([[0, 1], [0, 2], [128, 0], [1, 0], [2, 0], [132, 0], [8, 0], [16, 0], [32, 0], [64, 0]])
)


@gluon.jit
def _mul2(a, b):
    """Products of two bf16 pairs, each pair in one 32-bit word."""
    return gl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _scaled2(x, factor):
    """Pairs of bf16 times an fp32 factor, rounded once."""
    low = (x << 16).to(gl.float32, bitcast=True) * factor
    high = (x & -65536).to(gl.float32, bitcast=True) * factor
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _parts4(x):
    """(R, 4) -> four (R,)."""
    even, odd = gl.split(gl.reshape(x, [x.shape[0], 2, 2]))
    x0, x2 = gl.split(even)
    x1, x3 = gl.split(odd)
    return x0, x1, x2, x3


@gluon.jit
def _parts8(x):
    """(R, 8) -> eight (R,)."""
    even, odd = gl.split(gl.reshape(x, [x.shape[0], 4, 2]))
    x0, x2, x4, x6 = _parts4(even)
    x1, x3, x5, x7 = _parts4(odd)
    return x0, x1, x2, x3, x4, x5, x6, x7


@gluon.jit
def _side4(a, b, c, d):
    """Four (..., ) -> (..., 2, 2) whose last two axes count them."""
    return gl.join(gl.join(a, c), gl.join(b, d))


@gluon.jit
def _side8(a, b, c, d, e, f, g, h):
    """Eight (..., ) -> (..., 2, 2, 2) whose last three axes count them."""
    return gl.join(gl.join(gl.join(a, e), gl.join(c, g)), gl.join(gl.join(b, f), gl.join(d, h)))


@gluon.jit
def _row4(a, b, c, d, layout: gl.constexpr):
    return gl.convert_layout(gl.reshape(_side4(a, b, c, d), [a.shape[0], 4]), layout)


@gluon.jit
def _row8(a, b, c, d, e, f, g, h, layout: gl.constexpr):
    return gl.convert_layout(gl.reshape(_side8(a, b, c, d, e, f, g, h), [a.shape[0], 8]), layout)


@gluon.jit
def _odd(x, y):
    """Pairs shifted by one entry, from a row of pairs and the row that starts one pair later."""
    return ((x >> 16) & 65535) | (y << 16)


@gluon.jit
def _features16(x, upper, half, rows: gl.constexpr):
    """Rows x of 16 as (R, 8) pairs -> (R, 32) and (R, 8) pairs, R counting rows twice.

    The lower half of the rows gets x[a] x[a+d], d = 0..3, then x[a] x[a+8] for a < 8, 1 and zeros; the rows for which
    `upper` holds get d = 4..7, then x. `half` multiplies the first product: 1/2 for the squares of queries.
    """
    R: gl.constexpr = x.shape[0]
    p0, p1, p2, p3, p4, p5, p6, p7 = _parts8(x)
    y0 = gl.where(upper, _row8(p2, p3, p4, p5, p6, p7, p0, p1, rows), x)
    q0, q1, q2, q3, q4, q5, q6, q7 = _parts8(y0)
    y1 = _row8(q1, q2, q3, q4, q5, q6, q7, q0, rows)
    y2 = _row8(q2, q3, q4, q5, q6, q7, q0, q1, rows)
    d0 = _mul2(_mul2(x, half), y0)
    d1 = _mul2(x, _odd(y0, y1))
    d2 = _mul2(x, y1)
    d3 = _mul2(x, _odd(y1, y2))
    main = gl.reshape(gl.permute(_side4(d0, d1, d2, d3), (0, 2, 3, 1)), [R, 32])
    e0, e1, e2, e3, _e4, _e5, _e6, _e7 = _parts8(_mul2(x, _row8(p4, p5, p6, p7, p0, p1, p2, p3, rows)))
    one = gl.full(p0.shape, 0x3F80, gl.int32, p0.type.layout)
    none = gl.full(p0.shape, 0, gl.int32, p0.type.layout)
    return main, gl.where(upper, x, _row8(e0, e1, e2, e3, one, none, none, none, rows))


@gluon.jit
def _features8(x, upper, half, rows: gl.constexpr):
    """Rows x of 8 as (R, 4) pairs -> (R, 8) and (R, 4) pairs, as _features16: d = 0, 1 and a < 4; d = 2, 3 and x."""
    R: gl.constexpr = x.shape[0]
    p0, p1, p2, p3 = _parts4(x)
    y0 = gl.where(upper, _row4(p1, p2, p3, p0, rows), x)
    q0, q1, q2, q3 = _parts4(y0)
    d0 = _mul2(_mul2(x, half), y0)
    d1 = _mul2(x, _odd(y0, _row4(q1, q2, q3, q0, rows)))
    main = gl.reshape(gl.permute(gl.join(d0, d1), (0, 2, 1)), [R, 8])
    e0, e1, _e2, _e3 = _parts4(_mul2(x, _row4(p2, p3, p0, p1, rows)))
    one = gl.full(p0.shape, 0x3F80, gl.int32, p0.type.layout)
    none = gl.full(p0.shape, 0, gl.int32, p0.type.layout)
    return main, gl.where(upper, x, _row4(e0, e1, one, none, rows))


@gluon.jit
def _write_features(pairs, slot, mains, tails, at, scale, K: gl.constexpr):
    """Features of queries pairs[2 slot] go to mains[2 at], tails[2 at]; those of keys, one further on, one further on.

    A thread makes one half of a row's features from the whole row, in packed products, and stores 16 bytes at a time.
    """
    R: gl.constexpr = 4 * CHUNK
    rows: gl.constexpr = gl.BlockedLayout([1, K // 2], [32, 1], [4, 1], [1, 0])
    twice: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 32, 1], [1, 4, 1], [2, 1, 0])
    stages: gl.constexpr = pairs.shape[0] // 2
    buffers: gl.constexpr = mains.shape[0] // 2
    words = pairs._reinterpret(gl.int32, [stages, 2 * CHUNK, 8], gl.NVMMASharedLayout(32, 32, 2)).index(slot)
    x = words.load(gl.SliceLayout(0, twice))[None, :, :].broadcast_to([2, 2 * CHUNK, 8])
    if K == 16:
        x = gl.convert_layout(gl.reshape(x, [R, 8]), rows)
    else:  # the row of 16 ends with another head's entries
        x, _ = gl.split(gl.permute(gl.reshape(x, [R, 2, 4]), (0, 2, 1)))
        x = gl.convert_layout(x, rows)
    row = gl.arange(0, R, gl.SliceLayout(1, rows))
    upper = (row >= 2 * CHUNK)[:, None].broadcast_to([R, K // 2])
    is_query = row % (2 * CHUNK) < CHUNK
    x = _scaled2(x, gl.where(is_query, scale, 1.0)[:, None])
    half = gl.where(row < CHUNK, 0x3F003F00, 0x3F803F80)[:, None].broadcast_to([R, K // 2])  # pairs of 1/2, of 1
    if K == 16:
        main, tail = _features16(x, upper, half, rows)
        mains._reinterpret(gl.int32, [buffers, R, 32], HALVES_256).index(at).store(main)
        tails._reinterpret(gl.int32, [buffers, R, 8], HALVES_64).index(at).store(tail)
    else:
        main, tail = _features8(x, upper, half, rows)
        mains._reinterpret(gl.int32, [buffers, R, 8], HALVES_64).index(at).store(main)
        tails._reinterpret(gl.int32, [buffers, R, 4], HALVES_32).index(at).store(tail)


@gluon.jit
def _chunk_weights(pairs, slot, scale, K: gl.constexpr):
    """Weights inside the chunk, (CHUNK, CHUNK) fp32, and its queries as an operand."""
    queries = pairs.index(2 * slot).load(LEFT)
    keys = pairs.index(2 * slot + 1).permute((1, 0)).load(RIGHT)
    if K == 8:  # the row of 16 ends with another head's entries
        mine = (gl.arange(0, 16, gl.SliceLayout(0, LEFT)) < 8)[None, :]
        queries = gl.where(mine, queries, gl.full([CHUNK, 16], 0.0, gl.bfloat16, LEFT))
    u = mma_v2(queries, keys, gl.full([CHUNK, CHUNK], 0.0, gl.float32, SCORE)) * scale + 1.0
    causal = (
        gl.arange(0, CHUNK, gl.SliceLayout(1, SCORE))[:, None] >= gl.arange(0, CHUNK, gl.SliceLayout(0, SCORE))[None, :]
    )
    return gl.where(causal, 0.5 * u * u + 0.5, 0.0), queries  # 1 + s + s^2 / 2 = ((1 + s)^2 + 1) / 2


@gluon.jit
def _builder(
    q, k, v, scale, first_row, at_k, at_v, tiles, barriers, T: gl.constexpr, K: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Four warps that copy inputs in, and turn queries and keys into features, weights and 1 / (row sum)."""
    pairs, values, mains, tails, weights, norms = tiles
    loaded, arrived, left, built, used = barriers
    CHUNKS: gl.constexpr = T // CHUNK
    form = gl.full([16, 16], 0.0, gl.float32, SCORE)  # sum of k k^T over the chunks before
    total = gl.full([CHUNK, 16], 0.0, gl.float32, SCORE)  # sum of k, in every row
    ones = gl.full([CHUNK, CHUNK], 1.0, gl.bfloat16, LEFT)
    mine = gl.arange(0, 16, gl.SliceLayout(0, SCORE))[None, :] < K
    for u in range(CHUNKS + STAGES - 1):
        if u < CHUNKS:  # the slot's last user was the chunk built in the previous iteration, here
            s = u % STAGES
            mbarrier.expect(loaded.index(s), 2 * CHUNK * 32)
            tma.async_copy_global_to_shared(q, [first_row + u * CHUNK, at_k], loaded.index(s), pairs.index(2 * s))
            tma.async_copy_global_to_shared(k, [first_row + u * CHUNK, at_k], loaded.index(s), pairs.index(2 * s + 1))
        if (u >= 1) & (u <= CHUNKS):  # one copy less ahead, so that building never waits for the chunk in work
            w = u - 1
            t = w % STAGES
            mbarrier.wait(left.index(t), ((w // STAGES) & 1) ^ 1)  # passes at once in the first round
            mbarrier.expect(arrived.index(t), 2 * CHUNK * BV)
            for part in gl.static_range(BV // 64):
                tma.async_copy_global_to_shared(
                    v, [first_row + w * CHUNK, at_v + 64 * part], arrived.index(t), values.index(t * (BV // 64) + part)
                )
        if u >= STAGES - 1:
            n = u - (STAGES - 1)
            b = n % BUFFERS
            mbarrier.wait(loaded.index(n % STAGES), (n // STAGES) & 1)
            mbarrier.wait(used.index(b), ((n // BUFFERS) & 1) ^ 1)
            _write_features(pairs, n % STAGES, mains, tails, b, scale, K)
            w, queries = _chunk_weights(pairs, n % STAGES, scale, K)
            weights.index(b).store(w.to(gl.bfloat16))
            # Row sums: of the weights, and of the past by q^T (sum k k^T) q; the form is symmetric, so that its
            # transpose is an operand as it stands. Two bf16 parts of it, since an error of a sum is one of a whole row.
            high = form.to(gl.bfloat16)
            low = (form - high.to(gl.float32)).to(gl.bfloat16)
            past = gl.full([CHUNK, 16], 0.0, gl.float32, SCORE)
            past = mma_v2(queries, gl.convert_layout(gl.permute(high, (1, 0)), RIGHT), past)
            past = mma_v2(queries, gl.convert_layout(gl.permute(low, (1, 0)), RIGHT), past)
            x = pairs.index(2 * (n % STAGES)).load(SCORE).to(gl.float32)
            past = gl.where(mine, (past * (0.5 * scale) + total) * x, 0.0)
            row = gl.sum(w, 1) + gl.sum(past, 1) * scale + (n * CHUNK).to(gl.float32)
            norms.index(n % 4).store(1.0 / (row + 1e-6))
            keys = pairs.index(2 * (n % STAGES) + 1)
            operand = keys.load(RIGHT)
            form = mma_v2(keys.permute((1, 0)).load(LEFT), operand, form)
            total = mma_v2(ones, operand, total)
            fence_async_shared()  # every thread's own stores, before the one arrival that stands for all of them
            gl.thread_barrier()
            mbarrier.arrive(built.index(b), count=1)


@gluon.jit
def _put_out(before, out, row, column, staged, slot, norms, chunk, PENDING: gl.constexpr):
    """Divide out^T of `chunk` by its row sums and start its copy, once at most PENDING others still read `staged`."""
    factor = norms.index(chunk % 4).load(gl.SliceLayout(0, before.type.layout))
    here = staged.index(slot)
    tma.store_wait(PENDING)
    gl.thread_barrier()
    here.permute((1, 0)).store((before * factor[None, :]).to(gl.bfloat16))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(out, [row, column], here)


@gluon.jit
def _consumer(
    part: gl.constexpr, out, first_row, at_v, tiles, staged, barriers, T: gl.constexpr, K: gl.constexpr,
    BV: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Four warps that own 64 columns of V: state, output, and nothing else."""
    _pairs, values, mains, tails, weights, norms = tiles
    _loaded, arrived, left, built, used = barriers
    CHUNKS: gl.constexpr = T // CHUNK
    out_acc: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    main_acc: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K * K // 2, 16])
    tail_acc: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * K, 16])
    state_operand: gl.constexpr = gl.DotOperandLayout(0, out_acc, 2)
    main = gl.full([64, K * K // 2], 0.0, gl.float32, main_acc)
    tail = gl.full([64, 2 * K], 0.0, gl.float32, tail_acc)
    before = gl.full([64, CHUNK], 0.0, gl.float32, out_acc)
    for n in range(CHUNKS):
        s = n % STAGES
        b = n % BUFFERS
        mbarrier.wait(built.index(b), (n // BUFFERS) & 1)
        mbarrier.wait(arrived.index(s), (n // STAGES) & 1)
        v_t = values.index(s * (BV // 64) + part).permute((1, 0))
        # Between two products with operands in registers ptxas waits for the first; so the short one goes first.
        copy_tail = gl.convert_layout(tail.to(gl.bfloat16), state_operand)
        acc = warpgroup_mma(copy_tail, tails.index(2 * b).permute((1, 0)), before, use_acc=False, is_async=True)
        copy_main = gl.convert_layout(main.to(gl.bfloat16), state_operand)
        acc = warpgroup_mma(copy_main, mains.index(2 * b).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(v_t, weights.index(b).permute((1, 0)), acc, is_async=True)
        main_next = warpgroup_mma(v_t, mains.index(2 * b + 1), main, is_async=True)
        tail_next = warpgroup_mma(v_t, tails.index(2 * b + 1), tail, is_async=True)
        if n >= 1:  # the chunk before, while the tensor cores work
            _put_out(
                before, out, first_row + (n - 1) * CHUNK, at_v + 64 * part, staged, 2 * part + n % 2, norms, n - 1, 1
            )
        before, main, tail = warpgroup_mma_wait(0, [acc, main_next, tail_next])
        gl.thread_barrier()  # all four warps are done before one thread says so
        mbarrier.arrive(used.index(b), count=1)
        mbarrier.arrive(left.index(s), count=1)
    _put_out(
        before, out, first_row + (CHUNKS - 1) * CHUNK, at_v + 64 * part, staged, 2 * part + CHUNKS % 2, norms,
        CHUNKS - 1, 0,
    )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def _forward_hopper(
    q, k, v, out, scale, T: gl.constexpr, H: gl.constexpr, K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """BV = 64 or 128 columns of one head's output, all tokens; four warps build, four more consume every 64 columns.

    Tensors are descriptors of (B T, H K) and (B T, H V) matrices, in blocks of 64 x 16 and 64 x 64.
    """
    PARTS: gl.constexpr = BV // 64
    pid = gl.program_id(0)
    head = pid // (V // BV)
    first_row = (head // H) * T
    at_k = (head % H) * K
    at_v = (head % H) * V + (pid % (V // BV)) * BV
    sw32: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)
    sw128: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    sw_main: gl.constexpr = gl.NVMMASharedLayout(128 if K == 16 else 64, 16, 2)
    sw_tail: gl.constexpr = gl.NVMMASharedLayout(64 if K == 16 else 32, 16, 2)
    pairs = gl.allocate_shared_memory(gl.bfloat16, [2 * STAGES, CHUNK, 16], sw32)  # queries, keys, queries, ...
    values = gl.allocate_shared_memory(gl.bfloat16, [PARTS * STAGES, CHUNK, 64], sw128)
    mains = gl.allocate_shared_memory(gl.bfloat16, [2 * BUFFERS, CHUNK, K * K // 2], sw_main)
    tails = gl.allocate_shared_memory(gl.bfloat16, [2 * BUFFERS, CHUNK, 2 * K], sw_tail)
    weights = gl.allocate_shared_memory(gl.bfloat16, [BUFFERS, CHUNK, CHUNK], sw128)
    staged = gl.allocate_shared_memory(gl.bfloat16, [2 * PARTS, CHUNK, 64], sw128)  # outputs on their way
    norms = gl.allocate_shared_memory(gl.float32, [4, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    loaded = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())  # queries and keys are there
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())  # values are there
    left = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())  # values have been used
    built = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())  # features are there
    used = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())  # features have been used
    for i in gl.static_range(STAGES):
        mbarrier.init(loaded.index(i), count=1)
        mbarrier.init(arrived.index(i), count=1)
        mbarrier.init(left.index(i), count=PARTS)
    for i in gl.static_range(BUFFERS):
        mbarrier.init(built.index(i), count=1)
        mbarrier.init(used.index(i), count=PARTS)
    fence_async_shared()
    gl.thread_barrier()
    tiles = (pairs, values, mains, tails, weights, norms)
    barriers = (loaded, arrived, left, built, used)
    if PARTS == 2:
        gl.warp_specialize(
            [
                (_builder, (q, k, v, scale, first_row, at_k, at_v, tiles, barriers, T, K, BV, STAGES, BUFFERS)),
                (_consumer, (0, out, first_row, at_v, tiles, staged, barriers, T, K, BV, STAGES, BUFFERS)),
                (_consumer, (1, out, first_row, at_v, tiles, staged, barriers, T, K, BV, STAGES, BUFFERS)),
            ],
            [4, 4],
            [REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_builder, (q, k, v, scale, first_row, at_k, at_v, tiles, barriers, T, K, BV, STAGES, BUFFERS)),
                (_consumer, (0, out, first_row, at_v, tiles, staged, barriers, T, K, BV, STAGES, BUFFERS)),
            ],
            [4],
            [REGISTERS],
        )


@triton.jit
def _dot(a, b, acc):
    """acc + a @ b, bf16 operands, fp32 sums."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def _load(pointers):
    """Values to compute with: bf16, or in the interpreter fp32 (products are rounded to bf16 in both cases)."""
    x = tl.load(pointers)
    if INTERPRETED:
        x = x.to(tl.float32)
    return x


@triton.jit
def _row_pairs(a, b, C: tl.constexpr):
    """(C, 8), (C, 8) -> (C, 64), every product of a row's two entries."""
    return tl.reshape(a[:, :, None] * b[:, None, :], [C, 64]).to(tl.bfloat16)


@triton.jit
def _column_pairs(a, b, C: tl.constexpr):
    """(8, C), (8, C) -> (64, C), every product of a column's two entries."""
    return tl.reshape(a[:, None, :] * b[None, :, :], [64, C]).to(tl.bfloat16)


@triton.jit
def _segments(
    k, kt, forms, sums, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr, SEG: tl.constexpr, C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """forms[head, segment] = sum of k k^T (16 x 16, zero beyond K), sums[head, segment] = sum of k; kt[head] = k^T."""
    segment, head = tl.program_id(0), tl.program_id(1)
    segments = tl.num_programs(0)
    key = k + ((head // H).to(tl.int64) * T * H + head % H) * K
    transposed = kt + head.to(tl.int64) * (T * K)
    feature = tl.arange(0, 16)
    token = tl.arange(0, C)
    form = tl.zeros([16, 16], tl.float32)
    total = tl.zeros([16], tl.float32)
    for start in tl.range(0, SEG, C, num_stages=STAGES):
        t = segment * SEG + start + token
        there = (feature < K)[None, :] & (t < T)[:, None]
        x = tl.load(key + t[:, None] * (H * K) + feature[None, :], mask=there, other=0.0)
        y = tl.trans(x)
        tl.store(transposed + feature[:, None] * T + t[None, :], y, mask=(feature < K)[:, None] & (t < T)[None, :])
        form = _dot(y, x, form)
        total += tl.sum(x.to(tl.float32), 0)
    at = head * segments + segment
    tl.store(forms + at * 256 + feature[:, None] * 16 + feature[None, :], form)
    tl.store(sums + at * 16 + feature, total)


@triton.jit
def _normaliser(
    q, kt, forms, sums, inverse, scale, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr, SEG: tl.constexpr,
    C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """inverse[head, i] = 1 / (sum over j <= i of (1 + s + s^2 / 2) + 1e-6) for the SEG rows of one segment."""
    segment, head = tl.program_id(0), tl.program_id(1)
    segments = tl.num_programs(0)
    query = q + ((head // H).to(tl.int64) * T * H + head % H) * K
    key = kt + head.to(tl.int64) * (T * K)
    feature = tl.arange(0, 16)
    token = tl.arange(0, C)
    # The past of the segment: there are few segments (32 in the regime) and their forms are in L2.
    form = tl.zeros([16, 16], tl.float32)
    total = tl.zeros([16], tl.float32)
    for earlier in range(T // SEG):
        past = earlier < segment
        at = head * segments + earlier
        form += tl.load(forms + at * 256 + feature[:, None] * 16 + feature[None, :], mask=past, other=0.0)
        total += tl.load(sums + at * 16 + feature, mask=past, other=0.0)
    causal = token[:, None] >= token[None, :]
    for start in tl.range(0, SEG, C, num_stages=STAGES):
        t = segment * SEG + start + token
        there = t < T
        x = tl.load(
            query + t[:, None] * (H * K) + feature[None, :], mask=(feature < K)[None, :] & there[:, None], other=0.0
        )
        y = tl.load(key + feature[:, None] * T + t[None, :], mask=(feature < K)[:, None] & there[None, :], other=0.0)
        s = _dot(x, y, tl.zeros([C, C], tl.float32)) * scale
        row = tl.sum(tl.where(causal, 1.0 + s + 0.5 * s * s, 0.0), 1)
        high = form.to(tl.bfloat16)
        low = (form - high.to(tl.float32)).to(tl.bfloat16)
        half = _dot(x, low, _dot(x, high, tl.zeros([C, 16], tl.float32)))
        row += tl.sum((half * (0.5 * scale) + total[None, :]) * x.to(tl.float32), 1) * scale
        row += (segment * SEG + start).to(tl.float32)  # the past's constant terms
        tl.store(inverse + head * T + t, 1.0 / (row + 1e-6), mask=there)
        form = _dot(y, tl.trans(y), form)
        total += tl.sum(y.to(tl.float32), 1)


@triton.jit
def _forward(
    q, kt, v, inverse, out, scale, T: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    C: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BV columns of one head's output, all tokens."""
    pid = tl.program_id(0)
    head = pid // (V // BV)
    column = pid % (V // BV) * BV + tl.arange(0, BV)
    origin = (head // H).to(tl.int64) * T * H + head % H
    query = q + origin * K
    key = kt + head.to(tl.int64) * (T * K)
    value = v + origin * V
    result = out + origin * V
    token = tl.arange(0, C)
    f = tl.arange(0, K)
    f8 = tl.arange(0, 8)
    causal = token[:, None] >= token[None, :]

    # linear and constant terms: keys (k0, 1, k1, 1, ...), queries (q0, 1, q1, 0, q2, 0, ...); scale on even rows
    ones = tl.full([K, C], 1.0, tl.float32).to(tl.bfloat16)
    first = (tl.zeros([C, K], tl.float32) + tl.where(f == 0, 1.0, 0.0)[None, :]).to(tl.bfloat16)
    even = tl.where(tl.arange(0, 2 * K) % 2 == 0, scale, 1.0)
    linear = tl.zeros([2 * K, BV], tl.float32)
    lo_lo = tl.zeros([64, BV], tl.float32)
    hi_lo = tl.zeros([64, BV], tl.float32)
    hi_hi = tl.zeros([64, BV], tl.float32)

    for start in tl.range(0, T, C, num_stages=STAGES):
        t = start + token
        q_row = query + t[:, None] * (H * K)
        k_column = key + t[None, :]
        v_chunk = tl.load(value + t[:, None] * (H * V) + column[None, :])
        q_all = tl.load(q_row + f[None, :])
        k_all = tl.load(k_column + f[:, None] * T)
        q_lo = _load(q_row + f8[None, :])
        k_lo = _load(k_column + f8[:, None] * T)

        acc = _dot(_row_pairs(q_lo, q_lo, C), lo_lo.to(tl.bfloat16), tl.zeros([C, BV], tl.float32))
        lo_lo = _dot(_column_pairs(k_lo, k_lo, C), v_chunk, lo_lo)
        if K == 16:
            q_hi = _load(q_row + 8 + f8[None, :])
            k_hi = _load(k_column + (8 + f8[:, None]) * T)
            acc = _dot(_row_pairs(q_hi, q_lo + q_lo, C), hi_lo.to(tl.bfloat16), acc)
            acc = _dot(_row_pairs(q_hi, q_hi, C), hi_hi.to(tl.bfloat16), acc)
            hi_lo = _dot(_column_pairs(k_hi, k_lo, C), v_chunk, hi_lo)
            hi_hi = _dot(_column_pairs(k_hi, k_hi, C), v_chunk, hi_hi)
        acc *= 0.5 * scale * scale

        q_linear = tl.reshape(tl.join(q_all, first), [C, 2 * K])
        k_linear = tl.reshape(tl.permute(tl.join(k_all, ones), [0, 2, 1]), [2 * K, C])
        acc = _dot(q_linear, (linear * even[:, None]).to(tl.bfloat16), acc)
        linear = _dot(k_linear, v_chunk, linear)
        # 1 + s + s^2 / 2 = ((1 + s)^2 + 1) / 2, and the constant feature makes the product q.k + 1
        u = _dot(q_linear, k_linear, tl.zeros([C, C], tl.float32)) * scale + (1.0 - scale)
        weights = tl.where(causal, 0.5 * u * u + 0.5, 0.0)
        acc = _dot(weights.to(tl.bfloat16), v_chunk, acc)

        acc *= tl.load(inverse + head * T + t)[:, None]
        tl.store(result + t[:, None] * (H * V) + column[None, :], acc.to(out.dtype.element_ty))


@functools.cache
def _hopper_plan(device, B, T, H, K, V):
    """What the Hopper kernel's launch needs beside the tensors, or None where it does not apply.

    Returns the grid, what follows the tensor in a descriptor of q and k and in one of v and out, and constants.
    """
    if INTERPRETED or not HOPPER or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    if T < 128 or H * K < 16:  # a loop of one step does not compile; a block of 16 columns has to fit
        return None
    columns = 128 if COLUMNS == 128 and V % 128 == 0 else 64
    narrow = [B * T, H * K], [H * K, 1], [64, 16], SW32
    wide = [B * T, H * V], [H * V, 1], [64, 64], SW128
    constants = {
        "T": T, "H": H, "K": K, "V": V, "BV": columns, "STAGES": STAGES, "BUFFERS": BUFFERS[K, columns],
        "REGISTERS": REGISTERS[K, columns], "num_warps": 4, "maxnreg": COMPILED_REGISTERS[columns],
    }  # fmt: skip
    return (B * H * (V // columns),), narrow, wide, constants


def _forward_plain(q, k, v, out, scale):
    """The three plain launches; arguments as for based_forward."""
    B, T, H, K = q.shape
    V = v.shape[-1]
    heads, step, values, segment = B * H, math.gcd(T, STEP), math.gcd(V, VALUES[K]), min(SEGMENT, T)
    segments = triton.cdiv(T, segment)
    kt = torch.empty((heads, K, T), device=q.device, dtype=q.dtype)
    forms = torch.empty((heads, segments, 16, 16), device=q.device, dtype=torch.float32)
    sums = torch.empty((heads, segments, 16), device=q.device, dtype=torch.float32)
    inverse = torch.empty((heads, T), device=q.device, dtype=torch.float32)
    _segments[(segments, heads)](
        k, kt, forms, sums, T=T, H=H, K=K, SEG=segment, C=step, STAGES=SEGMENT_STAGES, num_warps=SEGMENT_WARPS
    )
    _normaliser[(segments, heads)](
        q, kt, forms, sums, inverse, scale, T=T, H=H, K=K, SEG=segment, C=step, STAGES=SEGMENT_STAGES,
        num_warps=SEGMENT_WARPS,
    )  # fmt: skip
    _forward[(heads * (V // values),)](
        q, kt, v, inverse, out, scale, T=T, H=H, K=K, V=V, C=step, BV=values, STAGES=FORWARD_STAGES,
        num_warps=FORWARD_WARPS, num_stages=FORWARD_STAGES,
    )  # fmt: skip


def based_forward(q, k, v, scale=None):
    """Based / Taylor linear attention forward. Tensors are contiguous.

    Args:
        q, k: (B, T, H, K) bfloat16, K in {8, 16}, T a multiple of 64.
        v: (B, T, H, V) bfloat16, V a multiple of 64.
        scale: query scale; None means K ** -0.5.

    Returns:
        (B, T, H, V) bfloat16.
    """
    B, T, H, K = q.shape
    V = v.shape[-1]
    if K not in (8, 16) or T % 64 or V % 64:
        raise ValueError(f"K = {K} must be 8 or 16, T = {T} and V = {V} multiples of 64")
    scale = K**-0.5 if scale is None else float(scale)
    out = torch.empty((B, T, H, V), device=q.device, dtype=torch.bfloat16)
    # The one place where the path is chosen. Tensors that start between two multiples of 16 bytes have no descriptor.
    plan = _hopper_plan(q.device, B, T, H, K, V)
    if plan is None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        _forward_plain(q, k, v, out, scale)
        return out
    grid, narrow, wide, constants = plan
    _forward_hopper[grid](
        TensorDescriptor(q, *narrow), TensorDescriptor(k, *narrow), TensorDescriptor(v, *wide),
        TensorDescriptor(out, *wide), scale, **constants,
    )  # fmt: skip
    return out
