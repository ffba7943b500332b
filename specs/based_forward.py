"""Spec of `based-forward`: causal linear attention whose weights are a second-order Taylor polynomial."""

from taskfactory import TaskSpec

SPEC = TaskSpec(
    name="based-forward",
    title="Based forward: causal attention with second-order Taylor weights",
    blurb="""Based weighs each earlier token by 1 + s + s²/2 where softmax attention would use exp(s). The polynomial is the inner
product of two feature vectors of length 1 + K + K², so attention turns into a running sum over the sequence. The
price is the size of that sum: {{ graded.state_ratio | digits(0) }} times the state of a plain linear attention with
the same K and V, plus a normaliser that has to be carried beside it.""",
    keywords=("mle", "kernel-generation", "gpu", "linear-attention", "based", "taylor", "feature-map"),
    version="1.0.0",
    difficulty="hard",
    authors=("taskfactory maintainers",),
    license="Apache-2.0",
    module="based.py",
    func="based_forward",
    signature="based_forward(q, k, v, scale=None)",
    returns_doc="""Causal attention with the weights 1 + s + s²/2, normalised by their row sum.

Args:
    q: (B, T, H, K) bfloat16, queries. K is the width of the Taylor features: 8 or 16.
    k: (B, T, H, K) bfloat16, keys.
    v: (B, T, H, V) bfloat16, values. V is the width of a head.
    scale: float that multiplies q, or None for K ** -0.5.

Returns:
    (B, T, H, V) bfloat16 or float32, equal to what reference.py returns up to the tolerance.""",
    reference_imports="""import torch
import torch.nn.functional as F""",
    reference_src='''
_CHUNK = 128  # tokens taken at once; the result does not depend on it


def _per_head(x):
    """(B, T, H, D) of any float type -> (B*H, T, D) float32."""
    return x.float().transpose(1, 2).flatten(0, 1)


def _products(x):
    """(N, C, K) -> (N, C, K*K): all products of two components of each row."""
    return torch.einsum("nca,ncb->ncab", x, x).flatten(2)


def based_forward(q, k, v, scale=None):
    """Float32 truth: q, k (B, T, H, K), v (B, T, H, V) -> (B, T, H, V) float32.

    Earlier chunks enter through three moments of the keys (orders 0, 1 and 2); within a chunk the weights are
    written out. A column of ones appended to v makes every sum carry its own normaliser as the last column.
    """
    heads = q.shape[2]
    queries = _per_head(q) * (q.shape[-1] ** -0.5 if scale is None else scale)
    keys = _per_head(k)
    values = F.pad(_per_head(v), (0, 1), value=1.0)

    order0 = order1 = order2 = 0.0
    rows = []
    for qc, kc, vc in zip(*(x.split(_CHUNK, dim=1) for x in (queries, keys, values)), strict=True):
        s = qc @ kc.mT
        sums = torch.tril(1.0 + s + s.square() / 2) @ vc
        if rows:
            sums = sums + order0 + qc @ order1 + _products(qc) @ order2 / 2
        rows.append(sums[..., :-1] / (sums[..., -1:] + 1e-6))
        order0 = order0 + vc.sum(dim=1, keepdim=True)
        order1 = order1 + kc.mT @ vc
        order2 = order2 + _products(kc).mT @ vc
    return torch.cat(rows, dim=1).unflatten(0, (-1, heads)).transpose(1, 2).contiguous()
''',
    make_inputs_src='''
def _mk(B, T, H, K, V, seed):
    """Standard normal q, k (B, T, H, K) and v (B, T, H, V) in bfloat16; scale is left at its default."""
    rng = torch.Generator(device="cuda").manual_seed(seed)

    def normal(width):
        return torch.randn(B, T, H, width, generator=rng, dtype=torch.bfloat16, device="cuda")

    return normal(K), normal(K), normal(V)
''',
    flops_src='''
def canonical_work(B, T, H, K, V, C=64):
    """FLOPs of one call, counted from the shape for the chunked linear form with chunks of C = 64 tokens.

    Per token and head: 2*P*V to add the token to the (P, V) state, P = 1 + K + K*K, and 2*P*V to read the state;
    2*C*K for the token's scores against its chunk and 2*C*V to apply them. Left out as lower-order terms: the
    features themselves, the normaliser and the division.
    """
    features = 1 + K + K * K
    state = 4 * features * V
    chunk = 2 * C * (K + V)
    return B * T * H * (state + chunk)
''',
    flops_formula="B*T*H * (4*(1 + K + K*K)*V + 2*C*(K + V)),  C = 64",
    derived_src='''
def _distinct_features(K):
    """Components of the feature map that differ: the products x[a]*x[b] and x[b]*x[a] are one."""
    return 1 + K + len(set([(min(a, b), max(a, b)) for a in range(K) for b in range(K)]))


def derived(B, T, H, K, V):
    P = 1 + K + K * K
    D = _distinct_features(K)
    pairwise = B * H * T * (T + 1) * (K + V)
    return {
        "P": P,
        "D": D,
        "state_ratio": P / K,
        "state_kib": 4 * P * V / 1024,
        "packed_kib": 4 * D * V / 1024,
        "input_gb": 2 * B * T * H * (2 * K + V) / 1e9,
        "output_gb": 2 * B * T * H * V / 1e9,
        "pairwise_ratio": pairwise / canonical_work(B, T, H, K, V),
        "flop_per_byte": canonical_work(B, T, H, K, V) / (4 * B * T * H * (K + V)),
        "floor_ratio": canonical_work(B, T, H, K, V) / floor(B, T, H, K, V)[1],
        "sequences": B * H,
    }


def reference_flops(B, T, H, K, V):
    """What torch's FLOP counter sees in the reference: 1.11 to 1.32 times the canonical count at the graded shapes.

    The reference takes chunks of 128 tokens where the count has 64, and carries the normaliser as one more column of v.
    Its first chunk reads no state, which brings the ratio below 1 where there are but one or two chunks. Products of
    two components of a row are elementwise and not counted.
    """
    lengths = [min(128, T - start) for start in range(0, T, 128)]
    in_chunk = sum([2 * c * c * (K + V + 1) for c in lengths])
    moments = 2 * (K + K * K) * (V + 1)
    return B * H * (in_chunk + moments * (T + sum(lengths[1:])))


def claims(B, T, H, K, V):
    figures = derived(B, T, H, K, V)
    # sum of 1/i for i = 1..n, to O(1/n)
    harmonic = [0.5772 + math.log2(n) / math.log2(2.718281828) for n in (T / 100, T)]
    return {
        "T is a multiple of 64.": T % 64 == 0,
        "Of the P = 1 + K + K² features, (K + 1)(K + 2)/2 are distinct.": 2 * figures["D"] == (K + 1) * (K + 2),
        "The packed state of one head fits in the 227 KiB of shared memory that a block may use on an H100 or H200.":
            figures["packed_kib"] < 227,
        "Writing out all pairs takes several times the counted FLOPs.": figures["pairwise_ratio"] > 5,
        "The first hundredth of the rows then holds about half of the output's energy.":
            0.4 < harmonic[0] / harmonic[1] < 0.6,
    }
''',
    floor_src='''
def floor(B, T, H, K, V):
    """(bytes, FLOPs) that cannot be avoided.

    Bytes: q, k and v are read once, the output is written once in bfloat16.

    FLOPs hold for the cheapest exact algorithm we know: the linear form with only the distinct features, and with
    chunks chosen at will. Folding a key into the state, or reading the state for a query, costs at least one
    multiply-add per distinct non-constant feature and value column (`visit`). A (query, key) pair that bypasses the
    state costs at least a K-long dot product and V multiply-adds (`pair`, less the two additions that a first term
    saves). Skipping the visit of the i-th query, or of the i-th key from the end, leaves it with i pairs to write out,
    which pays only while i * pair < visit; so the optimum is closed-form. Short sequences may write out all pairs.
    """
    visit = 2 * (_distinct_features(K) - 1) * V
    pair = 2 * (K + V) - 2
    skipped = min(visit // pair, T)
    saved = skipped * visit - pair * (skipped * (skipped + 1) // 2)
    linear = 2 * (T * visit - saved)
    quadratic = pair * (T * (T + 1) // 2)
    return 4 * B * T * H * (K + V), B * H * min(linear, quadratic)
''',
    timed_src='''
def mix(B, T, H, K, V, seed):
    """In each sequence, values are 8 to 32 times as large from a random token of its second quarter on, so that late tokens
    hold most of the output's energy."""
    q, k, v = _mk(B, T, H, K, V, seed)
    rng = torch.Generator(device=v.device).manual_seed(seed + 1)
    start, octaves = (torch.rand(B, 1, 1, 1, generator=rng, device=v.device) for _ in range(2))
    later = torch.arange(T, device=v.device).view(1, T, 1, 1) >= (start + 1) * T / 4
    return q, k, v.mul_(torch.where(later, torch.exp2(3 + 2 * octaves), 1.0).to(v.dtype))
''',
    cases_src='''
def _octaves(T, period, like, span=12):
    """(1, T, 1, 1): powers of two from 2**(-span/2) to 2**(span/2) in a fixed order, exact in bfloat16."""
    steps = (torch.arange(T, device=like.device) * 5) % period
    return torch.exp2((steps * span / (period - 1)).round() - span // 2).to(like.dtype).view(1, T, 1, 1)


def case_explicit_scale(B, T, H, K, V, seed):
    """A scale that is neither 1/sqrt(K) nor 1/sqrt(V)."""
    return (*_mk(B, T, H, K, V, seed), 0.6)


def case_zero_scale(B, T, H, K, V, seed):
    """Zero is a scale, not a missing one: every weight is 1 and the output is the running mean of v."""
    return (*_mk(B, T, H, K, V, seed), 0.0)


def case_negative_scale(B, T, H, K, V, seed):
    """The linear term changes its sign, the quadratic one does not."""
    return (*_mk(B, T, H, K, V, seed), -0.35)


def case_wide_range(B, T, H, K, V, seed):
    """Queries and values whose magnitudes span twelve octaves from token to token, and keys with four."""
    q, k, v = _mk(B, T, H, K, V, seed)
    return q * _octaves(T, 13, q), k * _octaves(T, 11, k, 4), v * _octaves(T, 7, v)


def case_long_tail_keys(B, T, H, K, V, seed):
    """One key in 37 is eight times as long as the others, so that few weights dominate a row."""
    q, k, v = _mk(B, T, H, K, V, seed)
    longer = torch.arange(T, device=k.device) % 37 == 11
    return q, torch.where(longer.view(1, T, 1, 1), 8 * k, k), v


def case_scores_near_minus_one(B, T, H, K, V, seed):
    """Every score is near -1, where 1 + s vanishes and only the quadratic term is left of a weight."""
    q, k, v = _mk(B, T, H, K, V, seed)
    return torch.ones_like(q) * K**-0.5 + q / 16, k / 16 - 1, v


def case_zero_values(B, T, H, K, V, seed):
    """No values in the first half of the sequence, and none at all in the last head."""
    q, k, v = _mk(B, T, H, K, V, seed)
    v = v.clone()
    v[:, : T // 2] = 0
    v[:, :, -1] = 0
    return q, k, v


def case_even_values(B, T, H, K, V, seed):
    """Tokens have nearly the same values, so that every row is close to them: halfway between two fp8 numbers."""
    q, k, v = _mk(B, T, H, K, V, seed)
    row = torch.exp2(torch.arange(V, device=v.device) % 7 - 3.0) * 1.0625
    return q, k, (row * (1 + v.float() / 64)).to(v.dtype)


def case_zero_keys(B, T, H, K, V, seed):
    """Keys that vanish in the second half: their tokens weigh exactly 1."""
    q, k, v = _mk(B, T, H, K, V, seed)
    k = k.clone()
    k[:, T // 2 :] = 0
    return q, k, v
''',
    regions_src='''
def regions(q, k, v, scale=None):
    """All tokens but the first eighth of each sequence."""
    late = torch.arange(q.shape[1], device=q.device) >= q.shape[1] // 8
    return {"late_tokens": ("out", late.view(1, -1, 1, 1), 1e-2)}
''',
    alternates={
        "all_pairs": '''
def all_pairs(q, k, v, scale=None):
    """Quadratic attention: the (T, T) weights written out, 128 rows at a time, as a completed square ((1 + s)**2 + 1) / 2."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys, values = k.float(), v.float()
    rows = []
    for start in range(0, q.shape[1], 128):
        queries = q[:, start : start + 128].float() * factor
        s = torch.einsum("bihk,bjhk->bhij", queries, keys[:, : start + 128])
        weights = ((1.0 + s) ** 2 + 1.0).tril(start) * 0.5
        total = weights.sum(-1).transpose(1, 2)[..., None]
        rows.append(torch.einsum("bhij,bjhv->bihv", weights, values[:, : start + 128]) / (total + 1e-6))
    return torch.cat(rows, dim=1)
''',
        "packed_bf16": '''
def packed_bf16(q, k, v, scale=None):
    """What a tensor-core kernel does: distinct features, bfloat16 operands, float32 sums and state, chunks of 64."""

    def rounded(x):
        return x.bfloat16().float()

    B, T, H, K = q.shape
    factor = K**-0.5 if scale is None else scale
    first, second = torch.triu_indices(K, K, device=q.device)
    multiplicity = torch.where(first == second, 0.5, 1.0)

    def features(x, weight):
        return torch.cat((torch.ones_like(x[..., :1]), x, rounded(x[..., first] * x[..., second] * weight)), -1)

    qs = rounded(q.float().permute(0, 2, 1, 3) * factor)
    ks = k.float().permute(0, 2, 1, 3)
    vs = torch.cat((v.float().permute(0, 2, 1, 3), torch.ones(B, H, T, 1, device=v.device)), -1)
    state = torch.zeros(B, H, 1 + K + len(first), vs.shape[-1], device=v.device)
    out = torch.empty(B, H, T, v.shape[-1], device=v.device)
    for start in range(0, T, 64):
        part = slice(start, start + 64)
        a, b, c = qs[:, :, part], ks[:, :, part], vs[:, :, part]
        s = a @ b.transpose(-1, -2)
        both = rounded((1 + s + s * s / 2).tril()) @ c + features(a, multiplicity) @ rounded(state)
        out[:, :, part] = both[..., :-1] / (both[..., -1:] + 1e-6)
        state += features(b, 1.0).transpose(-1, -2) @ c
    return out.transpose(1, 2).bfloat16()
''',
    },
    ablations={
        "first_order": '''
def first_order(q, k, v, scale=None):
    """Without the quadratic term: weights 1 + s."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys, values = k.float(), v.float()
    rows = []
    for start in range(0, q.shape[1], 128):
        queries = q[:, start : start + 128].float() * factor
        s = torch.einsum("bihk,bjhk->bhij", queries, keys[:, : start + 128])
        weights = (1.0 + s).tril(start)
        total = weights.sum(-1).transpose(1, 2)[..., None]
        rows.append(torch.einsum("bhij,bjhv->bihv", weights, values[:, : start + 128]) / (total + 1e-6))
    return torch.cat(rows, dim=1)
''',
        "unnormalised": '''
def unnormalised(q, k, v, scale=None):
    """Without the division by the row sum."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys, values = k.float(), v.float()
    rows = []
    for start in range(0, q.shape[1], 128):
        queries = q[:, start : start + 128].float() * factor
        s = torch.einsum("bihk,bjhk->bhij", queries, keys[:, : start + 128])
        weights = (1.0 + s + s * s / 2).tril(start)
        rows.append(torch.einsum("bhij,bjhv->bihv", weights, values[:, : start + 128]))
    return torch.cat(rows, dim=1)
''',
        "non_causal": '''
def non_causal(q, k, v, scale=None):
    """Every query sees every key."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys, values = k.float(), v.float()
    rows = []
    for start in range(0, q.shape[1], 128):
        queries = q[:, start : start + 128].float() * factor
        s = torch.einsum("bihk,bjhk->bhij", queries, keys)
        weights = 1.0 + s + s * s / 2
        total = weights.sum(-1).transpose(1, 2)[..., None]
        rows.append(torch.einsum("bhij,bjhv->bihv", weights, values) / (total + 1e-6))
    return torch.cat(rows, dim=1)
''',
        "without_diagonal": '''
def without_diagonal(q, k, v, scale=None):
    """A query does not see its own key."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    keys, values = k.float(), v.float()
    rows = []
    for start in range(0, q.shape[1], 128):
        queries = q[:, start : start + 128].float() * factor
        s = torch.einsum("bihk,bjhk->bhij", queries, keys[:, : start + 128])
        weights = (1.0 + s + s * s / 2).tril(start - 1)
        total = weights.sum(-1).transpose(1, 2)[..., None]
        rows.append(torch.einsum("bhij,bjhv->bihv", weights, values[:, : start + 128]) / (total + 1e-6))
    return torch.cat(rows, dim=1)
''',
        "exponential": '''
def exponential(q, k, v, scale=None):
    """Softmax instead of its expansion."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return F.scaled_dot_product_attention(
        q.float().transpose(1, 2), k.float().transpose(1, 2), v.float().transpose(1, 2), is_causal=True, scale=factor
    ).transpose(1, 2)
''',
        "scale_of_v": '''
def scale_of_v(q, k, v, scale=None):
    """The default scale taken from the width of v."""
    return based_forward(q, k, v, v.shape[-1] ** -0.5 if scale is None else scale)
''',
        "chunk_only": '''
def chunk_only(q, k, v, scale=None):
    """Nothing is carried from one chunk of 64 tokens to the next."""
    chunks = zip(*(x.split(64, dim=1) for x in (q, k, v)), strict=True)
    return torch.cat([based_forward(*chunk, scale) for chunk in chunks], dim=1)
''',
        "fp8_late_rows": '''
def fp8_late_rows(q, k, v, scale=None):
    """All rows but the first eighth in fp8 precision; passes a global norm, since later rows are small."""
    out = based_forward(q, k, v, scale)
    late = out[:, out.shape[1] // 8 :]
    late.copy_(late.to(torch.float8_e4m3fn).float())
    return out
''',
    },
    survivors={
        "shapes.duration": "at the first graded shape the limit, 0.29 to 0.33 ms by the ceilings at hand, was 17 to 19 "
        "deltas of the clock in the grading of 2026-12-01 on an H200 (0.017 ms), at the others 23 or more; real kernels "
        "take about twice the limit there",
    },
    metric="TFLOP/s",
    compare="tensor",
    tol=2e-2,
    tile_kappa=1.0,
    shape_names=("B", "T", "H", "K", "V"),
    grader_shapes=(
        (4, 16384, 32, 16, 128),
        (8, 8192, 32, 16, 128),
        (8, 16384, 16, 16, 128),
        (8, 16384, 32, 16, 64),
        (8, 16384, 32, 8, 128),
    ),
    measure_shapes=(
        (4, 12288, 32, 16, 128),
        (8, 8192, 16, 16, 128),
        (4, 16384, 32, 16, 64),
        (2, 16384, 32, 16, 128),
        (4, 16384, 32, 8, 128),
    ),
    measure_quick_shapes=((1, 2048, 16, 16, 128), (2, 2048, 8, 16, 128), (1, 4096, 16, 8, 128)),
    correct_shapes=((1, 256, 4, 16, 128), (2, 512, 8, 16, 64), (1, 512, 6, 8, 128), (2, 128, 4, 16, 128)),
    spec_md="""For each batch entry and head, with `q[i]`, `k[j]` of length `K` and `v[j]` of length `V`:

```
s[i, j] = scale * dot(q[i], k[j])                      scale = K ** -0.5 unless given
a[i, j] = 1 + s[i, j] + s[i, j]**2 / 2   if j <= i     (no exponential, no row maximum)
        = 0                              otherwise
o[i]    = sum_j a[i, j] * v[j]  /  (sum_j a[i, j] + 1e-6)
```

The weights are the polynomial itself, and each row is divided by the sum of its own weights. Since
`1 + s + s**2 / 2 = ((1 + s)**2 + 1) / 2`, a weight is never below 1/2 and the sum never vanishes.

**The linear form.** With the feature map

```
phi(x) = [ 1,  x[a],  x[a] * x[b] / sqrt(2) ]    for all a, b;    length P = 1 + K + K*K
```

one has `dot(phi(x), phi(y)) = 1 + dot(x, y) + dot(x, y)**2 / 2`, so the sums over `j` can be kept as a running state:

```
S[i] = sum_{j <= i} outer(phi(k[j]), v[j])    (P, V)        z[i] = sum_{j <= i} phi(k[j])    (P,)
o[i] = phi(scale * q[i]) @ S[i]  /  (dot(phi(scale * q[i]), z[i]) + 1e-6)
```

The operator is thereby linear in `T`. `K` is the width of the features, not of a head: it is small so that `P` stays
manageable ({{ graded.P.min }} at `K = {{ graded.K.min }}`, {{ graded.P.max }} at `K = {{ graded.K.max }}`). The
products `x[a] * x[b]` and `x[b] * x[a]` are equal. Of the P = 1 + K + K² features, (K + 1)(K + 2)/2 are distinct.
That is {{ graded.D.min }} of {{ graded.P.min }} and {{ graded.D.max }} of {{ graded.P.max }}.

`reference.py` evaluates this in float32: earlier chunks through the moments of order 0, 1 and 2 of the keys, the
current chunk through its weights. How the sequence is cut, and every other algebraic rearrangement, is yours to
choose. The reference is written to be read, and its speed plays no part in your score.""",
    contract_md="""| argument | shape | dtype | meaning |
|---|---|---|---|
| `q` | `(B, T, H, K)` | `bfloat16` | queries |
| `k` | `(B, T, H, K)` | `bfloat16` | keys |
| `v` | `(B, T, H, V)` | `bfloat16` | values |
| `scale` | — | `float` or `None` | multiplies `q`; `None` stands for `K ** -0.5` (of `K`, not of `V`) |

| result | shape | dtype |
|---|---|---|
| `o` | `(B, T, H, V)` | `bfloat16` or `float32` |

- `scale` enters once: the score is `dot(scale * q[i], k[j])`. It may be any finite number; zero (all weights 1) and
  negative values are among the checked cases.
- A row includes its own token, so row 0 has one weight and is never empty.
- The `1e-6` is added to the sum of the weights, not to each weight.
- T is a multiple of 64. `K` is 8 or 16, `V` is 64 or 128, and nothing else is assumed of the sizes.
- Tensors are contiguous, finite and on one device. Each sequence starts from an empty state, and no state is
  returned; there is no window, no packing of sequences of different length, and `q`, `k` and `v` have the same number
  of heads.
- The inputs are read-only.""",
    regime_md="""The graded shapes are not disclosed. They lie in these ranges:

| | graded | `measure.py` |
|---|---|---|
| `B` | {{ graded.B }} | {{ measure.B }} |
| `T` | {{ graded.T }} | {{ measure.T }} |
| `H` | {{ graded.H }} | {{ measure.H }} |
| `K` | {{ graded.K.values }} | {{ measure.K.values }} |
| `V` | {{ graded.V.values }} | {{ measure.V.values }} |
| features `P` | {{ graded.P.values }} | {{ measure.P.values }} |
| … of which distinct | {{ graded.D.values }} | {{ measure.D.values }} |
| float32 state `(P, V)` of one head | {{ graded.state_kib | digits(1) }} KiB | {{ measure.state_kib | digits(1) }} KiB |
| … packed: distinct features only | {{ graded.packed_kib | digits(1) }} KiB | {{ measure.packed_kib | digits(1) }} KiB |
| independent sequences `B * H` | {{ graded.sequences }} | {{ measure.sequences }} |
| inputs + output (bfloat16) | {{ graded.input_gb }} + {{ graded.output_gb }} GB | {{ measure.input_gb }} + {{ measure.output_gb }} GB |
| counted FLOP per byte moved | {{ graded.flop_per_byte }} | {{ measure.flop_per_byte }} |

Between `K = {{ graded.K.min }}` and `K = {{ graded.K.max }}` the state grows by a factor of nearly four, and with it
the balance between arithmetic and traffic. A kernel laid out for one of them only will do poorly on the other, or
fail.""",
    correctness_md="""`o` is compared with the float32 reference by the relative error `‖o − r‖ / ‖r‖`, and the tolerance is {{ tol }}. The
bound on every run of 4096 consecutive entries, given in full below, has the factor {{ kappa }} in this task: one
token, or a few, must be as accurate as the whole output. All tokens but the first eighth of each sequence, the region
`late_tokens`, have to meet {{ regions.late_tokens }} by themselves.

These conditions have a reason. Row `i` is a weighted mean of `i + 1` random values, so its square falls about like
`1 / (i + 1)`. The first hundredth of the rows then holds about half of the output's energy. A single norm would hardly
notice what becomes of the rest, such as rounding all rows but the first eighth to fp8 (e4m3).{% if certificate %} With
the default inputs at the correctness shapes that scores {{ certificate.ablations.fp8_late_rows.default }} over the
whole output, but {{ certificate.ablations.fp8_late_rows.regions.late_tokens.default }} over the late tokens. With the
inputs of timed calls, whose late values are larger, it scores {{ certificate.ablations.fp8_late_rows.timed }} over the
whole output too, and where the results lie between two fp8 numbers it is at least
{{ certificate.ablations.fp8_late_rows.margin }} times what is allowed (measured on
{{ certificate.devices }}).{% endif %}""",
    perf_md="""**What the count contains.** The canonical FLOPs are those of the linear form with all `P` features and chunks of 64
tokens. Doing less work for the same result is welcome: with the distinct features only, the unavoidable arithmetic is
smaller by a factor of {{ graded.floor_ratio }}. Writing out all pairs takes several times the counted FLOPs. The
factor is {{ graded.pairwise_ratio }} at the graded lengths.

**Never let the features reach memory.** The reference does, and `phi` is `P / K` = {{ graded.state_ratio }} times as
large as the query or key it comes from. Features are cheap to form from a tile of `q` or `k` that is already on chip.

**Three states, not one.** `S` splits by order. The constant feature keeps the sum of `v`, `(V,)`. The linear features
keep `sum outer(k, v)`, `(K, V)`, the state of ordinary linear attention. The quadratic features keep
`sum k[a] * outer(k, v)` for each `a`: `K` further states of that size, of which only the columns `b >= a` are needed
once the off-diagonal products count twice. The `sqrt(2)` need not be computed: put the whole factor, 1/2 on the
diagonal and 1 beside it, on the query's side. The packed state of one head fits in the 227 KiB of shared memory that
a block may use on an H100 or H200. It can also be held in registers, split over the columns of `v`. The question is
what else has to fit beside it.

**Within a chunk, use the weights directly.** For a chunk of `C` tokens, `q k^T`, the polynomial under a causal mask,
and one product with `v` cost `2 * C * (K + V)` FLOPs per token and no features. All heavy parts are then matrix
products: scores, weights times `v`, features of `q` times the state, and features of `k` transposed times `v`. Their
inner dimensions are small (`K`, `C`), so choose `C` and the grouping of the features to give the tensor cores full
tiles.

**The normaliser is the same computation for one more column of `v`, filled with ones.** It can be an extra column of
each product, or row sums and a vector `z` kept on the side, or a small kernel of its own in front; a width of `V + 1`
fits tensor-core tiles badly.

**Parallelism.** There are `B * H` = {{ graded.sequences }} independent sequences, and the columns of `v` are
independent too: splitting `V` multiplies the number of programs and divides the state, at the price of forming
features and weights once in each part. Splitting `T` needs the state at each cut, {{ graded.packed_kib }} KiB a head
even when packed, written and read again.""",
    precision_md="""Inputs are bfloat16, and products of bfloat16 operands accumulated in float32 are precise enough throughout: with the
scaled query, the features, the weights, the state as it is read, and the output rounded to bfloat16 all conditions
hold with room to spare.{% if certificate %} On the correctness shapes an emulation of such a kernel scores
{{ certificate.alternates.packed_bf16.default }} with normal inputs and at most
{{ certificate.alternates.packed_bf16.worst.max }} with any of the special ones,
{{ certificate.alternates.packed_bf16.regions.late_tokens.worst.max }} over the late tokens; it uses up to
{{ certificate.alternates.packed_bf16.use }} of what is allowed.{% if certificate.gpu %} At the graded shapes it scores
{{ certificate.alternates.packed_bf16.graded }}.{% endif %} The nearest wrong answer is {{ certificate.wrong_margin }}
times what is allowed; of {{ certificate.mutants }} damaged references judged by their values {{ certificate.rejected }}
are rejected (measured on {{ certificate.devices }}).{% endif %} fp8 may be used wherever all three conditions above
still hold.

**Keep the running state in float32.** `S` and `z` are sums over the whole prefix with no decay: they grow with the
position, up to {{ graded.T.max }} tokens, while what one chunk adds does not. A bfloat16 accumulator keeps 8
significant bits, so late additions are increasingly rounded away, and the error grows with the length of the sequence.
Reading the state through a bfloat16 copy is harmless.

**Square in float32.** A rounded score has its relative error doubled by the square. The three terms of a weight can
also cancel: rounding each of them separately costs up to `3 + 2 * sqrt(2)`, about 5.8, times the unit of rounding, at
`s = -sqrt(2)`. It is never worse, as a weight is at least 1/2. An error in the row sum scales the whole row; give it
the care you give to `S`.

**The quadratic term is not a correction.** With weights `1 + s` a row sum may come near zero, and the error is beyond
any rounding; without the division it grows with `T`.{% if certificate %} With normal inputs at the correctness shapes
the error of the first is {{ certificate.ablations.first_order.default }}, of the second
{{ certificate.ablations.unnormalised.default }}.{% endif %}

Float32 in the reference makes it a stable truth; it is not a hint to compute in float32.""",
)
