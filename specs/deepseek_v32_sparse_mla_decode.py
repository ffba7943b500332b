"""Task `deepseek-v32-sparse-mla-decode`: latent attention of one new token over a list of selected cache rows."""

from taskfactory import TaskSpec

SPEC = TaskSpec(
    name="deepseek-v32-sparse-mla-decode",
    title="Fast sparse MLA decode: attention over listed rows of a latent cache",
    blurb=(
        "DeepSeek-V3.2 decodes in two steps: a light indexer selects a few thousand earlier positions, and attention "
        "then runs over that selection only. This task is the second step, in the absorbed form of Multi-head Latent "
        "Attention: a cache row is a single latent vector that all heads share, serving as the key and, in its leading "
        "part, as the value. The selected rows lie anywhere in a pool of about a gigabyte. At 128 heads the arithmetic "
        "on a row takes the tensor cores longer than memory takes to deliver it, so the kernel has to hide an "
        "irregular gather behind two chained matrix products."
    ),
    keywords=[
        "kernel-generation", "mla", "deepseek", "sparse-attention", "latent-attention", "decode", "gather", "kv-cache",
        "tensor-cores",
    ],
    authors=("taskfactory maintainers",),
    license="Apache-2.0",
    difficulty="hard",
    version="1.0.0",
    module="sparse_mla.py",
    func="sparse_mla_decode",
    signature="sparse_mla_decode(q, kv_cache, indices, dv, scale=None)",
    returns_doc="""Attention of one query token a request over the cache rows listed for it.

Args:
    q:        (B, H, DT) bfloat16. Query of each head, already mapped into the latent space.
    kv_cache: (NROWS, DT) bfloat16. The pool, one row a cached position, common to all heads. Entries 0 to dv - 1 of a row
              are the latent, the rest the rotary part of the key.
    indices:  (B, K) int32. The rows that request b attends to: distinct, in no particular order, none missing.
    dv:       int, 0 < dv < DT. Width of the latent, hence of the value and of the result.
    scale:    float or None. Factor on the logits; None stands for DT ** -0.5. Any finite value is allowed, 0.0 included.

Returns:
    (B, H, dv) bfloat16 or float32.""",
    reference_imports="import torch",
    reference_src='''
GROUP = 16  # requests gathered at a time: bounds the fp32 copy of their rows


def sparse_mla_decode(q, kv_cache, indices, dv, scale=None):
    """Gather, score, softmax, read out, all in fp32 and one after the other: the definition, not a way to be fast."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    results = []
    for queries, chosen in zip(q.split(GROUP), indices.split(GROUP)):
        rows = kv_cache[chosen.long()].float()
        logits = torch.bmm(queries.float(), rows.mT) * factor
        weights = logits.softmax(dim=-1)
        results.append(torch.bmm(weights, rows[..., :dv]).to(torch.bfloat16))
    return torch.cat(results)
''',
    make_inputs_src='''
def _mk(B, K, H, DV, DR, NROWS, seed):
    """Random queries and pool; each request takes one row from each of K equal stretches of the pool, in random order.

    Picking within stretches makes a request's rows distinct without a sort. Different requests pick independently, so
    they do share rows. `scale` is left at its default.
    """
    rng = torch.Generator(device="cuda").manual_seed(seed)
    width, stretch = DV + DR, NROWS // K
    q = torch.randn((B, H, width), generator=rng, dtype=torch.bfloat16, device="cuda")
    pool = torch.randn((NROWS, width), generator=rng, device="cuda").mul_(width ** -0.25).bfloat16()
    within = torch.rand((B, K), generator=rng, device="cuda").mul_(stretch).long()
    picked = torch.arange(0, K * stretch, stretch, device="cuda") + within
    shuffled = torch.rand((B, K), generator=rng, device="cuda").argsort(dim=-1)
    return q, pool, torch.gather(picked, 1, shuffled).int(), DV, None
''',
    flops_src='''
def canonical_work(B, K, H, DV, DR, NROWS):
    """Bytes attributed to one call: each of the B * K listed rows fetched once in bf16, the list, the queries, the result.

    A row is counted once although it is used as key and as value. It is counted for every request that lists it, although
    requests share rows, so a kernel that reuses rows across requests can move less than this.
    """
    DT = DV + DR
    rows, index_list = 2 * DT * B * K, 4 * B * K
    queries, result = 2 * B * H * DT, 2 * B * H * DV
    return rows + index_list + queries + result
''',
    flops_formula="""DT    = DV + DR
bytes = 2 * DT * B * K + 4 * B * K + 2 * B * H * DT + 2 * B * H * DV
#       listed rows      indices     queries          result""",
    derived_src='''
def derived(B, K, H, DV, DR, NROWS):
    DT = DV + DR
    stretch = NROWS // K
    return {
        "DT": DT,
        "gathered_gib": 2 * DT * B * K / 2**30,
        "pool_gib": 2 * DT * NROWS / 2**30,
        "row_bytes": 2 * DT,
        "row_lines": 2 * DT / 128,
        "flop_per_row": 2 * H * (DT + DV),
        "flop_per_byte": H * (DT + DV) / DT,
        "tflop": 2 * H * (DT + DV) * B * K / 1e12,
        "distinct_share": 100 * stretch * K * (1 - (1 - 1 / stretch) ** B) / (B * K),
        "result_mib": 2 * B * H * DV / 2**20,
        "logit_spread": DT ** -0.25,
    }


def touched_bytes(B, K, H, DV, DR, NROWS):
    """Bytes of distinct data a call with the default inputs is expected to read and write.

    Less than the canonical bytes, which count a listed row for every request that lists it: requests pick independently
    within each stretch of the pool, so some rows are picked more than once.
    """
    DT, stretch = DV + DR, NROWS // K
    distinct = stretch * K * (1 - (1 - 1 / stretch) ** B)
    return 2 * DT * distinct + 4 * B * K + 2 * B * H * (DT + DV)


def claims(B, K, H, DV, DR, NROWS):
    DT = DV + DR
    return {
        "A row is a whole number of 128-byte lines.": 2 * DT % 128 == 0,
        "dv and DT - dv are multiples of 32.": DV % 32 == 0 and DR % 32 == 0,
        "At 128 heads a gathered byte carries more FLOP than the ridge of an H200, at 64 heads fewer.":
            H * (DT + DV) / DT > 206 if H == 128 else H * (DT + DV) / DT < 179,
        "The listed rows are more bytes than the pool itself.": B * K > NROWS,
        "Element offsets into the pool fit in 32 bits.": NROWS * DT < 2**31,
    }
''',
    floor_src='''
def floor(B, K, H, DV, DR, NROWS):
    """What holds whatever the indices say: a request's K rows are distinct, but all requests may list the same K.

    So only K rows are sure to be read, beside lists, queries and a bf16 result. The two products cannot be shared
    between requests: 2 * H * DT FLOP to score a listed row and 2 * H * DV to read it out.
    """
    DT = DV + DR
    return 2 * DT * K + 4 * B * K + 2 * B * H * (DT + DV), 2 * H * (DT + DV) * B * K
''',
    timed_src='''
def mix(B, K, H, DV, DR, NROWS, seed):
    """One query in eight, drawn at random, is 16 to 512 times as long: its logits spread over units to hundreds, and few rows
    or one dominate. The other queries keep their nearly even weights."""
    q, *rest = _mk(B, K, H, DV, DR, NROWS, seed)
    rng = torch.Generator(device=q.device).manual_seed(seed + 1)
    rank = torch.rand(B * H, generator=rng, device=q.device).argsort().view(B, H, 1)
    octaves = torch.randint(4, 10, (B, H, 1), generator=rng, device=q.device)
    longer = torch.where(rank < max(1, B * H // 8), octaves, 0)
    return q.mul_(torch.exp2(longer.float()).to(q.dtype)), *rest
''',
    cases_src='''
def case_explicit_scale(B, K, H, DV, DR, NROWS, seed):
    """A given scale, eight times the default: only `scale` differs."""
    return *_mk(B, K, H, DV, DR, NROWS, seed)[:4], 8.0 * (DV + DR) ** -0.5


def case_zero_scale(B, K, H, DV, DR, NROWS, seed):
    """scale = 0.0 is a value like any other: the result is the mean of the listed latents."""
    return *_mk(B, K, H, DV, DR, NROWS, seed)[:4], 0.0


def case_negative_scale(B, K, H, DV, DR, NROWS, seed):
    """A negative scale turns the order of the logits around."""
    return *_mk(B, K, H, DV, DR, NROWS, seed)[:4], -0.25


def case_narrow_value(B, K, H, DV, DR, NROWS, seed):
    """Half of the latent is read out, the other half only scores: only `dv` differs."""
    q, pool, indices, dv, scale = _mk(B, K, H, DV, DR, NROWS, seed)
    return q, pool, indices, dv // 2, scale


def case_peaked(B, K, H, DV, DR, NROWS, seed):
    """Queries 32 times as long: logits spread over several units, a few rows dominate."""
    q, *rest = _mk(B, K, H, DV, DR, NROWS, seed)
    return q * 32.0, *rest


def case_huge_logits(B, K, H, DV, DR, NROWS, seed):
    """Queries 512 times as long: logits reach hundreds, and exp without a running maximum overflows."""
    q, *rest = _mk(B, K, H, DV, DR, NROWS, seed)
    return q * 512.0, *rest


def case_wide_range(B, K, H, DV, DR, NROWS, seed):
    """Pool rows and queries with scales from 2**-6 to 2**3 of their own."""
    q, pool, *rest = _mk(B, K, H, DV, DR, NROWS, seed)
    rng = torch.Generator(device=q.device).manual_seed(seed + 1)
    row_power = torch.randint(-6, 4, (NROWS, 1), device=q.device, generator=rng)
    head_power = torch.randint(-6, 4, (B, H, 1), device=q.device, generator=rng)
    return torch.ldexp(q.float(), head_power).bfloat16(), torch.ldexp(pool.float(), row_power).bfloat16(), *rest


def case_late_peak(B, K, H, DV, DR, NROWS, seed):
    """Each request's last listed row lies along the mean of its queries, so the running maximum jumps at the very end."""
    q, pool, indices, dv, scale = _mk(B, K, H, DV, DR, NROWS, seed)
    towards = torch.nn.functional.normalize(q.float().mean(dim=1), dim=-1) * (8.0 * H ** 0.5)
    for request, last in enumerate(indices[:, -1].tolist()):  # one by one: two requests may end in the same row
        pool[last] = towards[request].bfloat16()
    return q, pool, indices, dv, scale


def case_ascending(B, K, H, DV, DR, NROWS, seed):
    """Each list in ascending order."""
    q, pool, indices, dv, scale = _mk(B, K, H, DV, DR, NROWS, seed)
    return q, pool, indices.sort(dim=1).values, dv, scale


def case_pool_ends(B, K, H, DV, DR, NROWS, seed):
    """Adjacent rows: even requests take the pool's last K rows backwards, odd ones its first K rows forwards."""
    q, pool, indices, dv, scale = _mk(B, K, H, DV, DR, NROWS, seed)
    ramp = torch.arange(K, device=q.device, dtype=torch.int32)
    odd = (torch.arange(B, device=q.device) % 2 == 1)[:, None]
    return q, pool, torch.where(odd, ramp, NROWS - 1 - ramp), dv, scale


def case_shared_rows(B, K, H, DV, DR, NROWS, seed):
    """All requests list the same rows, each starting at another place of the list."""
    q, pool, indices, dv, scale = _mk(B, K, H, DV, DR, NROWS, seed)
    turned = [indices[0].roll(37 * request) for request in range(B)]
    return q, pool, torch.stack(turned), dv, scale
''',
    regions_src='''
def regions(q, kv_cache, indices, dv, scale=None):
    """Queries of a root mean square up to 4, and longer ones. A long query's result is near a single row and much larger
    than the mean of many, so in one norm over both an error of the short ones would not show."""
    size = torch.linalg.vector_norm(q, dim=-1, keepdim=True, dtype=torch.float32)
    long = size > 4.0 * q.shape[-1] ** 0.5
    return {"short_queries": ("out", ~long, 5e-3), "long_queries": ("out", long, 5e-3)}
''',
    alternates={
        "split_lists": '''
def split_lists(q, kv_cache, indices, dv, scale=None):
    """Flash decoding: four parts of each list with an online softmax in steps of 96 rows, merged by log-sum-exp.

    Weights are rounded to bf16 before the value product, as tensor cores need them; sums and logits stay in fp32.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    results = []
    for queries, lists in zip(q.split(64), indices.split(64)):
        queries = queries.float()
        partial, logs = [], []
        for part in lists.chunk(4, dim=1):
            top = torch.full((*queries.shape[:2], 1), float("-inf"), device=q.device)
            total, acc = torch.zeros_like(top), torch.zeros(*queries.shape[:2], dv, device=q.device)
            for step in part.split(96, dim=1):
                rows = torch.nn.functional.embedding(step, kv_cache).float()
                logits = torch.baddbmm(top, queries, rows.mT, beta=0.0, alpha=factor)
                new_top = torch.maximum(top, logits.amax(-1, keepdim=True))
                shrink, p = torch.exp(top - new_top), torch.exp(logits - new_top)
                total = total * shrink + p.sum(-1, keepdim=True)
                acc = torch.baddbmm(acc * shrink, p.bfloat16().float(), rows[..., :dv])
                top = new_top
            partial.append(acc / total)
            logs.append(top + total.log())
        shares = torch.softmax(torch.stack(logs), dim=0)
        results.append((shares * torch.stack(partial)).sum(0).bfloat16())
    return torch.cat(results)
''',
        "double_sorted": '''
def double_sorted(q, kv_cache, indices, dv, scale=None):
    """float64 throughout, rows visited in pool order, fp32 result: close to the exact answer."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    out = []
    for queries, lists in zip(q.split(32), indices.sort(dim=1).values.split(32)):
        rows = kv_cache.index_select(0, lists.flatten()).view(*lists.shape, -1).double()
        logits = torch.einsum("bhd,bkd->bkh", queries.double(), rows) * factor
        weights = torch.exp(logits - torch.logsumexp(logits, 1, keepdim=True))
        out.append(torch.einsum("bkh,bkd->bhd", weights, rows[..., :dv]).float())
    return torch.cat(out)
''',
    },
    ablations={
        "no_rotary_part": '''
def no_rotary_part(q, kv_cache, indices, dv, scale=None):
    """Scores with the latent only."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return sparse_mla_decode(q[..., :dv], kv_cache[:, :dv], indices, dv, factor)
''',
        "first_rows": '''
def first_rows(q, kv_cache, indices, dv, scale=None):
    """Ignores the list and reads rows 0 to K - 1."""
    run = torch.arange(indices.shape[1], device=q.device).expand_as(indices)
    return sparse_mla_decode(q, kv_cache, run, dv, scale)
''',
        "uniform_weights": '''
def uniform_weights(q, kv_cache, indices, dv, scale=None):
    """Averages the listed rows: no softmax."""
    return sparse_mla_decode(q, kv_cache, indices, dv, 0.0)
''',
        "cubic_exponential": '''
def cubic_exponential(q, kv_cache, indices, dv, scale=None):
    """exp(s) cut off after s**3 / 6, with no maximum taken off first: close where logits are near zero."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    results = []
    for queries, chosen in zip(q.split(GROUP), indices.split(GROUP)):
        rows = kv_cache[chosen.long()].float()
        s = torch.bmm(queries.float(), rows.mT) * factor
        weights = (1 + s * (1 + s * (0.5 + s / 6))).clamp(min=0)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        results.append(torch.bmm(weights, rows[..., :dv]).to(torch.bfloat16))
    return torch.cat(results)
''',
        "value_width_scale": '''
def value_width_scale(q, kv_cache, indices, dv, scale=None):
    """Takes the default scale from dv in place of DT."""
    return sparse_mla_decode(q, kv_cache, indices, dv, dv ** -0.5 if scale is None else scale)
''',
    },
    metric="GB/s",
    compare="tensor",
    tol=7e-3,
    shape_names=("B", "K", "H", "DV", "DR", "NROWS"),
    grader_shapes=[
        (768, 2048, 128, 512, 64, 1048576), (512, 4096, 128, 512, 64, 1048576), (1024, 2048, 128, 512, 64, 1048576),
        (768, 3072, 128, 512, 64, 1048576), (640, 2048, 64, 512, 64, 786432),
    ],
    measure_shapes=[
        (704, 2048, 128, 512, 64, 1048576), (448, 4096, 128, 512, 64, 1048576), (896, 2048, 128, 512, 64, 1048576),
        (704, 3072, 128, 512, 64, 1048576), (576, 2048, 64, 512, 64, 786432),
    ],
    measure_quick_shapes=[(64, 1024, 64, 512, 64, 131072), (128, 512, 32, 512, 64, 65536), (32, 2048, 128, 512, 64, 131072)],
    correct_shapes=[(5, 256, 8, 128, 32, 4096), (3, 129, 16, 256, 64, 2048), (7, 512, 4, 512, 64, 8192), (2, 64, 32, 128, 32, 1024)],
    spec_md="""For request `b` an indexer has already chosen `K` rows of the cache. Attend to exactly those:

```
row(j)     = kv_cache[indices[b, j]]                          DT values
s[h, j]    = scale * dot(q[b, h], row(j))                     over all DT values
p[h, :]    = softmax of s[h, :] over the K listed rows
o[b, h, :] = sum over j of p[h, j] * row(j)[0 : dv]           the latent part only
```

`scale` is `DT ** -0.5` when it is `None`. Each slot of the list is a real row, so there is nothing to mask.

Three properties of latent attention shape the kernel:

* **A row is both key and value.** All of its `DT` values enter the logit, its first `dv` values are what is summed. The
  last `DT - dv`, the rotary part of the key, only score.
* **A row serves all heads.** The cache has no head axis. One fetched row takes part in `H` dot products and in `H`
  weighted sums.
* **Rows are scattered.** The list is the outcome of a top-k: distinct rows in arbitrary order, anywhere in a pool of
  `NROWS`. There are no pages, and neighbouring slots have unrelated addresses. Different requests may list the same
  row, and often do.

`reference.py` gathers the rows of some requests into fp32 and takes a dense softmax. It defines the result and makes no
attempt at speed.""",
    contract_md="""| arg | shape | dtype | meaning |
|-----|-------|-------|---------|
| `q` | `(B, H, DT)` | `bfloat16` | queries in the latent space |
| `kv_cache` | `(NROWS, DT)` | `bfloat16` | the pool; a row is a latent of `dv` values, then `DT - dv` rotary values |
| `indices` | `(B, K)` | `int32` | listed rows of each request, in `0 … NROWS - 1`, distinct within a request |
| `dv` | scalar | `int` | width of the latent and of the result |
| `scale` | scalar | `float` or `None` | factor on the logits, `None` for `DT ** -0.5`; may be zero or negative |

Return one tensor `o` of shape `(B, H, dv)` in `bfloat16` or `float32`.

All tensors are contiguous and on one CUDA device; inputs are read-only. `dv` and `DT - dv` are multiples of 32, but
`DT - dv` need not be a power of two. `K` is any positive number (129 is among the correctness shapes), and so is `B`;
`H` can be as small as {{ correct.H.min }}.""",
    regime_md="""The sizes of the graded calls are not disclosed; they lie in these ranges: `B` {{ graded.B.min }} to {{ graded.B.max }}
requests, `K` {{ graded.K.min }} to {{ graded.K.max }} rows each, `H` one of {{ graded.H.values }}, `dv` {{ graded.DV }}
and `DT` {{ graded.DT }}, in a pool of {{ graded.NROWS.min }} to {{ graded.NROWS.max }} rows,
{{ graded.pool_gib | digits(2) }} GiB.

A call lists {{ graded.gathered_gib | digits(2) }} GiB of rows, more than the whole pool holds, because requests repeat
each other's rows: with the default inputs {{ graded.distinct_share.min | digits(0) }} to
{{ graded.distinct_share.max | digits(0) }} percent of the listed rows are expected to be distinct. The score counts
listed rows, not distinct ones.

Scoring and reading out one row takes `2 * H * (DT + dv)` FLOP. At 128 heads that is
{{ graded.flop_per_byte.max | digits(0) }} FLOP for each gathered byte, at 64 heads
{{ graded.flop_per_byte.min | digits(0) }}. An H200 balances at 206 by its data sheet (989 TFLOP/s, 4.8 TB/s).
{% if certificate %}{% if certificate.gpu %}By what it reaches in a large bf16 matrix product and in a copy,
{{ certificate.ceilings.matmul_tflops | digits(0) }} TFLOP/s and {{ certificate.ceilings.copy_gbps | digits(0) }} GB/s,
it balances at {{ certificate.ceilings.flop_per_byte | digits(0) }}. {% endif %}{% endif %}So four of the five graded
calls are bound by the tensor cores and one by the gather. A call takes {{ graded.tflop | digits(2) }} TFLOP.""",
    correctness_md="""The result must be within a relative Frobenius error of {{ tol }} of the reference at every shape and case.

The default logits have a standard deviation of about {{ graded.logit_spread }} at the graded sizes, so weights are
nearly even and a mistake in the logits shows less than one might expect. So timed calls mix long queries among them,
and short and long ones are judged apart, each kind within {{ regions.short_queries }}: in a norm over both, the results
of the long ones, which are near single rows, would hide what becomes of the others.{% if certificate %} A cubic in place
of the exponential scores {{ certificate.ablations.cubic_exponential.default }} on the default inputs and
{{ certificate.ablations.cubic_exponential.timed }} on the mixed ones. Queries and rows in int8 score
{{ certificate.precision.int8.arguments.default }} on the default inputs, all of whose queries are short.

Further wrong answers, by their `E` on the default inputs: leaving the rotary part out of the logits scores
{{ certificate.ablations.no_rotary_part.default }}, plain averaging {{ certificate.ablations.uniform_weights.default }},
a default scale of `dv ** -0.5` {{ certificate.ablations.value_width_scale.default }}, and reading rows `0` to `K - 1` in
place of the list {{ certificate.ablations.first_rows.default }}. All were measured at the correctness shapes on
{{ certificate.devices }}.{% endif %}""",
    perf_md="""**Two products, one visit.** Bring each listed row to shared memory once and use it for the logits and for the weighted
sum, with a running maximum, a running sum and a rescaled accumulator. A kernel with a second pass for the values
gathers everything twice.

**Feed the tensor cores.** Per block of rows the work is a `(H, DT) × (DT, rows)` product and a `(H, rows) × (rows, dv)`
product, both on bf16 operands. At 128 heads they take longer than the gather, so the aim is tensor cores that do not
wait: keep several blocks of rows in flight (asynchronous copies into a ring of buffers, indices fetched well ahead)
while softmax and products of earlier blocks proceed.

**The accumulator is the constraint.** `H × dv` in fp32 is 256 KiB at 128 heads and `dv` 512, the entire register file
of an SM. Divide heads or value columns among blocks; whoever divides heads gathers rows once per division, from L2 at
best, and whoever divides value columns needs the weights in each.

**The gather itself.** A row is {{ graded.row_bytes }} bytes, exactly {{ graded.row_lines | digits(0) }} lines of 128
bytes and aligned to one, so its loads are wide and waste nothing; only the next row's address is unpredictable. The
result does not depend on the order of a list. Sorting it, or running requests with common rows at the same time, can
turn repeated rows into L2 hits, at the price of doing so in each call.

**Enough programs.** There are hundreds of requests and each is a long loop, so the last wave matters. If a list is
split over programs, merge the parts' `(sum, maximum, accumulator)` in fp32 with the usual log-sum-exp weights.

The result is up to {{ graded.result_mib.max | digits(0) }} MiB: write it once, in bf16, in wide stores.""",
    precision_md="""Inputs are bf16. Multiply them as they are and accumulate logits, sums and the result in fp32. Apply `scale` to the fp32
logits; a query that is rescaled and then rounded to bf16 again puts an error on every logit, which the cases with large
logits do not forgive. Rounding the weights `exp(s - maximum)` to bf16 for the second product is fine. An accumulator in
bf16 is not: its error grows with `K`.

Quantising rows or queries to 8 bits approximates the operation and is not an implementation of it.

**Where {{ tol }} comes from.** Rounding is what separates an honest kernel from the reference: of weights and result to
bf16 on one side, and of the result on the other. It does not grow with the list.{% if certificate %} An independent
implementation with an online softmax over parts of the list, bf16 weights in the value product and a bf16 result has an
`E` of {{ certificate.alternates.split_lists.default }} on the default inputs,
{{ certificate.alternates.split_lists.regions.short_queries.timed }} among the short queries of the mixed ones, and at
most {{ certificate.alternates.split_lists.worst.max }} in any case. A float64 evaluation that is never rounded to bf16
still reads {{ certificate.alternates.double_sorted.default }}, because the reference itself returns bf16.
{% if certificate.gpu %}At the graded shapes the two read {{ certificate.alternates.split_lists.graded }} and
{{ certificate.alternates.double_sorted.graded }}. {% endif %}Honest work fits {{ certificate.honest_margin }} times into
what is allowed, the nearest wrong answer is {{ certificate.wrong_margin }} times that, and of
{{ certificate.mutants }} damaged references judged by their values {{ certificate.rejected }} are rejected (measured on
{{ certificate.devices }}).{% endif %} What remains up to {{ tol }} is room for other orders of
summation and for hardware that rounds its products differently.""",
)
