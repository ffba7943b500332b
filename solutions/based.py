"""Based forward: causal attention with weights 1 + s + s^2 / 2, as linear attention over symmetric feature groups.

What is counted, and what is done
---------------------------------
The canonical count is 4 P V + 2 * 64 (K + V) FLOP a token and head, P = 1 + K + K^2. Unique traffic is q, k, v and
out: 4 (K + V) bytes a token and head, so about 100 FLOP a byte at K = 8, where memory is the limit on an H200, and
275 at K = 16, where tensor work and everything around it is.

x (x) x is symmetric, so nearly half of the K^2 products repeat. With x = (lo, hi), halves of eight features,

    (q . k)^2 = lo(x)lo + 2 hi(x)lo + hi(x)hi        (each an inner product of 8 x 8 = 64 features)

which is 192 products instead of 256, in three groups of exactly the 64 rows of a tensor-core block. For K = 8 one
group is left. The linear and the constant term are one more group: keys (k0, 1, k1, 1, ...) against queries (q0, 1,
q1, 0, q2, 0, ...), which also makes their product inside a chunk q . k + 1.

Design
------
Three launches. Heads and slices of V are independent; time is sequential inside a program of the last one.

1. ``_segments``: for every SEGMENT tokens of a head the fp32 sums of k k^T and of k; also k transposed, (K, T) a head.
2. ``_normaliser``: 1 / (sum_j A_ij + 1e-6) of every row. It needs no feature map: over the past, sum_j s^2 is the form
   scale^2 q^T (sum_j k_j k_j^T) q. For its tensor-core product the fp32 form is split into a high and a low bf16 part,
   since an error of a denominator is an error of the whole row.
3. ``_forward``: a program owns 64 columns of V and walks the sequence in chunks of 64 tokens. The state (three groups
   of 64 x 64 and the linear one) stays in its registers, in fp32. Each chunk multiplies a bf16 copy of it by the
   features of the queries, and adds the features of the keys times v. Inside the chunk the polynomial is evaluated
   directly.

What matters in (3), read from the machine code. The features of the keys are built in registers in the layout of a
tensor-core operand, features as rows and tokens as columns; with k transposed beforehand a thread reads pairs of
tokens in one shared-memory access, where k's own layout costs two-byte ones. Queries stay unscaled, so a feature is
one bf16 product rounded once; scale^2 / 2 multiplies the fp32 accumulator between the quadratic and the other terms,
and the factor two of hi(x)lo is exact. Together this took the kernel from 224 shared loads, 34 spill reloads and 1856
instructions to 66, 8 and 1250. Two programs share a multiprocessor (255 registers, four warps), and one computes
while the other waits.

Left: the normaliser inside (3) spills. One program for all 128 columns builds features once instead of twice, but
needs eight warps, so no second program fits to fill its waits, and it spills more. One group of 128 rows for
hi(x)(lo, hi) saves a dependent product and spills too."""

import math

import torch
import triton
import triton.language as tl

# The one place where Triton's CPU interpreter differs. It computes on bf16 as on integers, so `_dot` and `_load` widen
# operands first, which is exact; and it pays per program and per operation, so it gets larger blocks.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
CHUNK = 128 if INTERPRETED else 64  # most tokens of one step
VALUES = 128 if INTERPRETED else 64  # most columns of V of one program of the forward
SEGMENT = 256 if INTERPRETED else 512  # most tokens of one program of the normaliser

FORWARD_WARPS, FORWARD_STAGES = 4, 2
SEGMENT_WARPS, SEGMENT_STAGES = 4, 2


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


def based_forward(q, k, v, scale=None):
    """Based / Taylor linear attention forward.

    Args:
        q, k: (B, T, H, K) bfloat16, K in {8, 16}, T a multiple of 64.
        v: (B, T, H, V) bfloat16, V a multiple of 64.
        scale: query scale; None means K ** -0.5.

    Returns:
        (B, T, H, V) bfloat16.
    """
    B, T, H, K = q.shape
    V = v.shape[-1]
    if scale is None:
        scale = K**-0.5
    if K not in (8, 16) or T % 64 or V % 64:
        raise ValueError(f"K = {K} must be 8 or 16, T = {T} and V = {V} multiples of 64")
    chunk, values = math.gcd(T, CHUNK), math.gcd(V, VALUES)
    segment = min(SEGMENT, T)
    segments = triton.cdiv(T, segment)
    heads = B * H
    kt = torch.empty((heads, K, T), device=q.device, dtype=q.dtype)
    forms = torch.empty((heads, segments, 16, 16), device=q.device, dtype=torch.float32)
    sums = torch.empty((heads, segments, 16), device=q.device, dtype=torch.float32)
    inverse = torch.empty((heads, T), device=q.device, dtype=torch.float32)
    out = torch.empty((B, T, H, V), device=q.device, dtype=torch.bfloat16)
    _segments[(segments, heads)](
        k, kt, forms, sums, T=T, H=H, K=K, SEG=segment, C=chunk, STAGES=SEGMENT_STAGES,
        num_warps=SEGMENT_WARPS,
    )  # fmt: skip
    _normaliser[(segments, heads)](
        q, kt, forms, sums, inverse, float(scale), T=T, H=H, K=K, SEG=segment, C=chunk,
        STAGES=SEGMENT_STAGES, num_warps=SEGMENT_WARPS,
    )  # fmt: skip
    _forward[(heads * (V // values),)](
        q, kt, v, inverse, out, float(scale), T=T, H=H, K=K, V=V, C=chunk, BV=values, STAGES=FORWARD_STAGES,
        num_warps=FORWARD_WARPS, num_stages=FORWARD_STAGES,
    )  # fmt: skip
    return out
