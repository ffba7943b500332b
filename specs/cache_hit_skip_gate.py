"""Task `cache-hit-skip-gate`: reuse a cached residual in some token blocks and refresh it in the others."""

from taskfactory import TaskSpec

SPEC = TaskSpec(
    name="cache-hit-skip-gate",
    title="Fast cache gate: reuse or refresh the residual, block by block",
    blurb=(
        "A video diffusion model can skip a transformer block for tokens that hardly change between denoising steps: "
        "it adds the residual cached at an earlier step to the block's input instead of computing the block. Whether "
        "to reuse or to recompute is decided for blocks of consecutive tokens, so one clip mixes both. This kernel "
        "applies the decision to a whole sequence. Written as a plain select it reads three large tensors everywhere; "
        "a kernel that looks at the flag first reads only two of them in any place."
    ),
    keywords=[
        "kernel-generation", "diffusion", "video-generation", "residual-cache", "block-cache", "elementwise",
        "bandwidth-bound",
    ],
    authors=("taskfactory maintainers",),
    license="Apache-2.0",
    difficulty="easy",
    version="1.0.0",
    module="cache_gate.py",
    func="cache_hit_skip_gate",
    signature="cache_hit_skip_gate(hidden, fresh, cache, hit, block)",
    returns_doc="""Apply a per-block cache decision to a token sequence.

Args:
    hidden: (B, L, D) bfloat16. Input x of the transformer block.
    fresh:  (B, L, D) bfloat16. Its newly computed output y; arbitrary, even NaN, where the flag says hit.
    cache:  (B, L, D) bfloat16. Residual c kept from an earlier step; arbitrary, even NaN, where the flag says miss.
    hit:    (B, ceil(L / block)) bool. True where a token block reuses its cached residual.
    block:  int. Tokens in a block; the last one of a sequence may be shorter.

Returns:
    (out, cache_out), each (B, L, D) bfloat16: (x + c, c) in hit blocks, (y, y - x) in missed ones.""",
    reference_imports="import torch",
    reference_src='''
def cache_hit_skip_gate(hidden, fresh, cache, hit, block):
    """Both branches everywhere in fp32, then a select for each output: the definition, not a way to be fast."""
    owner = torch.arange(hidden.shape[1], device=hidden.device) // block
    reuse = hit.index_select(1, owner)[:, :, None]
    wide = {name: stream.float() for name, stream in (("x", hidden), ("y", fresh), ("c", cache))}
    reused = (wide["x"] + wide["c"], wide["c"])
    refreshed = (wide["y"], wide["y"] - wide["x"])
    return tuple(torch.where(reuse, a, b).to(hidden.dtype) for a, b in zip(reused, refreshed))
''',
    make_inputs_src='''
def _mk(B, L, D, G, seed):
    """Unit-normal x and y, a smaller residual, and independent flags that say hit six times in ten."""
    rng = torch.Generator(device="cuda").manual_seed(seed)
    size = (B, L, D)
    x, y = (torch.randn(size, device="cuda", dtype=torch.bfloat16, generator=rng) for _ in range(2))
    residual = torch.randn(size, device="cuda", generator=rng).mul_(0.3).bfloat16()
    flags = torch.rand(B, -(-L // G), device="cuda", generator=rng).lt(0.6)
    return x, y, residual, flags, G
''',
    flops_src='''
def canonical_work(B, L, D, G):
    """Bytes of one call: four bf16 streams of B * L * D values.

    x is read and two outputs are written for every token; the fourth stream is c in hit blocks and y in missed ones, so
    the total depends on the shape alone. The flags, one byte a block, are left out.
    """
    streams = 4
    return streams * 2 * B * L * D
''',
    flops_formula="bytes = 4 * (B * L * D) * 2      # x, then c or y, then both outputs, in bf16",
    derived_src='''
def derived(B, L, D, G):
    return {
        "gib": 8 * B * L * D / 2**30,
        "block_values": G * D,
        "row_bytes": 2 * D,
        "one_token_error": (2.09 / (1.05 * B * L)) ** 0.5,
        "reference_ratio": 78 / 8,
    }


def claims(B, L, D, G):
    return {
        "`block` never divides `L` in a graded call.": L % G != 0,
        "A token's row is a multiple of 128 bytes.": 2 * D % 128 == 0,
        "The four streams are far larger than the L2 cache.": 8 * B * L * D > 10 * 60 * 10**6,
        "One wrong token exceeds the tolerance.": (2.09 / (1.05 * B * L)) ** 0.5 > 2e-3,
    }
''',
    floor_src='''
def floor(B, L, D, G):
    """Four streams and the flags, whatever the flags say; one addition or subtraction a value."""
    return canonical_work(B, L, D, G) + B * -(-L // G), B * L * D
''',
    # Only the streams that must not be read are changed. Values of other sizes would help wrong answers: large ones dominate
    # the norms, and then a wrong token among small ones is within the tolerance.
    timed_src='''
def mix(B, L, D, G, seed):
    """In every other token, drawn at random, NaN stands in the stream that its flag says is not read."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    rng = torch.Generator(device=x.device).manual_seed(seed + 1)
    junk = torch.rand(B, L, 1, generator=rng, device=x.device) < 0.5
    hits = _hits(x, hit, block)
    nan = float("nan")
    return x, y.masked_fill_(hits & junk, nan), c.masked_fill_(~hits & junk, nan), hit, block
''',
    cases_src='''
def _hits(like, hit, block):
    """The flags spread over tokens, (B, L, 1) bool."""
    return hit.repeat_interleave(block, dim=1)[:, : like.shape[1], None]


def _poisoned(stream, where):
    """`stream` with NaN, +inf and -inf in turn wherever `where` holds."""
    junk = torch.tensor([float("nan"), float("inf"), float("-inf")], device=stream.device, dtype=stream.dtype)
    filler = junk[torch.arange(stream.numel(), device=stream.device) % 3].view_as(stream)
    return torch.where(where, filler, stream)


def case_junk_in_unread_streams(B, L, D, G, seed):
    """NaN and infinities wherever the flag says that a stream is not read."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    hits = _hits(x, hit, block)
    return x, _poisoned(y, hits), _poisoned(c, ~hits), hit, block


def case_all_hit(B, L, D, G, seed):
    """Every block hits; fresh holds nothing but junk."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    hit = torch.ones_like(hit)
    return x, _poisoned(y, _hits(x, hit, block)), c, hit, block


def case_all_miss(B, L, D, G, seed):
    """Every block misses; cache holds nothing but junk."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    hit = torch.zeros_like(hit)
    return x, y, _poisoned(c, ~_hits(x, hit, block)), hit, block


def case_wide_range(B, L, D, G, seed):
    """Magnitudes from 2**-40 to 2**40, value by value and independently for the three streams."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    rng = torch.Generator(device=x.device).manual_seed(seed + 1)
    scaled = []
    for stream in (x, y, c):
        power = torch.randint(-40, 41, stream.shape, device=x.device, generator=rng)
        scaled.append(torch.ldexp(stream.float(), power).bfloat16())
    return *scaled, hit, block


def case_cancelling(B, L, D, G, seed):
    """c close to -x and y close to x, so that sums and differences lose their leading bits."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    return x, (x.float() * 1.015625).bfloat16(), (x.float() * -0.9921875).bfloat16(), hit, block


def case_other_block(B, L, D, G, seed):
    """The default tensors with a block longer or shorter by a few tokens: only `block` differs."""
    x, y, c, hit, block = _mk(B, L, D, G, seed)
    for other in (G + 1, G - 1, G + 2, G - 2):
        if other > 0 and -(-L // other) == hit.shape[1]:
            return x, y, c, hit, other
    return None


def case_whole_blocks(B, L, D, G, seed):
    """A block that divides L, so that no block is short; hits and misses alternate."""
    x, y, c, _, _ = _mk(B, L, D, G, seed)
    parts = min((n for n in range(2, 200) if L % n == 0), default=L)
    place = torch.arange(B, device=x.device)[:, None] + torch.arange(parts, device=x.device)
    return x, y, c, place % 2 == 0, L // parts


def case_one_long_block(B, L, D, G, seed):
    """A block longer than the sequence: one flag a request, alternating."""
    x, y, c, _, _ = _mk(B, L, D, G, seed)
    return x, y, c, (torch.arange(B, device=x.device) % 2 == 0)[:, None], L + 7
''',
    alternates={
        "block_copies": '''
def block_copies(hidden, fresh, cache, hit, block):
    """One branch a block, only the streams of that branch, arithmetic in bf16 itself."""
    out, cache_out = torch.empty_like(hidden), torch.empty_like(cache)
    length = hidden.shape[1]
    for request, flags in enumerate(hit.tolist()):
        for number, flag in enumerate(flags):
            span = (request, slice(number * block, min(length, (number + 1) * block)))
            if flag:
                cache_out[span] = cache[span]
                torch.add(hidden[span], cache[span], out=out[span])
            else:
                out[span] = fresh[span]
                torch.sub(fresh[span], hidden[span], out=cache_out[span])
    return out, cache_out
''',
        "token_lists": '''
def token_lists(hidden, fresh, cache, hit, block):
    """Sorts the tokens of all requests into two lists, gathers and scatters whole rows, and adds in float64."""
    B, L, D = hidden.shape
    token = torch.arange(B * L, device=hidden.device)
    flags = hit[token // L, token % L // block]
    rows = [stream.reshape(B * L, D) for stream in (hidden, fresh, cache)]
    out, cache_out = (torch.empty_like(rows[0]) for _ in range(2))
    reuse, refresh = token[flags], token[~flags]
    out[reuse] = (rows[0][reuse].double() + rows[2][reuse].double()).to(out.dtype)
    cache_out[reuse] = rows[2][reuse]
    out[refresh] = rows[1][refresh]
    cache_out[refresh] = (rows[1][refresh].double() - rows[0][refresh].double()).to(out.dtype)
    return out.view(B, L, D), cache_out.view(B, L, D)
''',
    },
    ablations={
        "arithmetic_select": '''
def arithmetic_select(hidden, fresh, cache, hit, block):
    """Weighs both branches with the flag, 1 or 0, and adds them up: nothing is left unread."""
    owner = torch.arange(hidden.shape[1], device=hidden.device) // block
    flag = hit[:, owner, None].to(hidden.dtype)
    out = flag * (hidden + cache) + (1 - flag) * fresh
    return out, flag * cache + (1 - flag) * (fresh - hidden)
''',
        "one_flag_per_request": '''
def one_flag_per_request(hidden, fresh, cache, hit, block):
    """The first block's flag decides for its whole request."""
    return cache_hit_skip_gate(hidden, fresh, cache, hit[:, :1].expand_as(hit), block)
''',
        "always_refresh": '''
def always_refresh(hidden, fresh, cache, hit, block):
    """Ignores the flags and treats every block as missed."""
    return cache_hit_skip_gate(hidden, fresh, cache, torch.zeros_like(hit), block)
''',
        "boundary_one_late": '''
def boundary_one_late(hidden, fresh, cache, hit, block):
    """Each block begins one token too late."""
    owner = (torch.arange(hidden.shape[1], device=hidden.device) - 1).clamp(min=0) // block
    per_token = hit[:, owner]
    return cache_hit_skip_gate(hidden, fresh, cache, per_token, 1)
''',
    },
    metric="GB/s",
    compare="tuple",
    tuple_names=("out", "cache_out"),
    output_dtypes=(("bfloat16",), ("bfloat16",)),
    tol=2e-3,
    shape_names=("B", "L", "D", "G"),
    grader_shapes=[(2, 29040, 3072, 512), (1, 124440, 3072, 1024), (4, 18480, 3072, 256), (2, 29040, 5120, 512), (8, 12870, 3072, 768)],
    measure_shapes=[(2, 24000, 3072, 512), (1, 99552, 3072, 1024), (3, 18480, 3072, 256), (1, 29040, 5120, 512), (6, 12870, 3072, 768)],
    measure_quick_shapes=[(2, 8190, 1536, 512), (4, 4096, 3072, 256), (1, 18480, 3072, 1024)],
    correct_shapes=[(5, 129, 256, 64), (2, 8190, 1536, 512), (3, 1025, 64, 256), (1, 4097, 3072, 1024)],
    spec_md="""A sequence of `L` tokens is cut into blocks of `block` tokens: token `l` belongs to block `l // block`, and when `block`
does not divide `L` the last block is short. `hit[b, n]` says whether block `n` of request `b` reuses its cached
residual. With `x` for `hidden`, `y` for `fresh` and `c` for `cache`, for every token and each of its `D` values:

| `hit[b, l // block]` | `out[b, l]` | `cache_out[b, l]` |
|------|------|------|
| true: the block was skipped | `x + c` | `c` |
| false: the block was computed | `y` | `y - x` |

What is cached is the residual, the block's output less its input, because it varies less from step to step than the
output does. A hit applies the old residual to the new input; a miss takes the new output and stores the new residual.

In a hit block `fresh` has no meaning, in a missed block `cache` has none. Neither may influence the result there, nor
need it be read: that is the saving, and it is why four streams are counted although five tensors have the full size.

In the default inputs a block hits with probability 0.6, independently of its neighbours.

`reference.py` evaluates both branches for every token in fp32 and selects. It defines the result; do not imitate it.""",
    contract_md="""| arg | shape | dtype | meaning |
|-----|-------|-------|---------|
| `hidden` | `(B, L, D)` | `bfloat16` | input of the transformer block |
| `fresh` | `(B, L, D)` | `bfloat16` | its new output, meaningful in missed blocks only |
| `cache` | `(B, L, D)` | `bfloat16` | its cached residual, meaningful in hit blocks only |
| `hit` | `(B, ceil(L / block))` | `bool` | reuse flag of each block |
| `block` | scalar | `int` | tokens a block, a Python integer |

Return the 2-tuple `(out, cache_out)`, both new `(B, L, D)` tensors in `bfloat16`.

All tensors are contiguous and on one CUDA device. Inputs are read-only: return a new cache, do not update `cache` in
place. `block` may be any positive integer, also one that does not divide `L`, and one larger than `L`. Where a stream
has no meaning it may hold anything, NaN and infinities included.""",
    regime_md="""The sizes of the graded calls are not disclosed; they lie in these ranges: `B` {{ graded.B }} requests, `L`
{{ graded.L.min }} to {{ graded.L.max }} tokens, `D` one of {{ graded.D.values }}, and `block` one of
{{ graded.G.values }}. Each call moves {{ graded.gib | digits(2) }} GiB in its four counted streams. `block` never
divides `L` in a graded call, so the last block of each sequence is short.

There is one addition or subtraction for eight counted bytes, so the bandwidth of HBM is the limit. `B` can be 1: take
the parallelism from tokens and values, not from requests.""",
    correctness_md="""Each of the two outputs must be within a relative Frobenius error of {{ tol }} of the reference. Since the right answer
is unique to the bit (see Precision), that is strict: in the default inputs one token that takes the wrong branch gives
an error of about {{ graded.one_token_error | digits(4) }} at the graded sizes.

In timed calls and in some of the variants listed below, NaN or infinities stand where a stream must not be read. An
arithmetic select, `flag * (x + c) + (1 - flag) * y`, lets them through.

Three mistakes that are rejected: one flag for a whole request, treating every block as missed, and blocks that begin one
token late.{% if certificate %} As the larger `E` of the two outputs, with the default inputs at the correctness shapes,
they score up to {{ certificate.ablations.one_flag_per_request.default.max }},
{{ certificate.ablations.always_refresh.default.max }} and {{ certificate.ablations.boundary_one_late.default.max }}
(measured on {{ certificate.devices }}).{% endif %}""",
    perf_md="""**Read the flag first.** It is constant over `block * D` consecutive values, {{ graded.block_values.min | thousands }}
or more. Give every program a range of tokens inside one block of one request: it loads one byte, branches once, and
then runs a loop without divergence that touches two input streams. A select on loaded values, `where(flag, x + c, y)`,
loads all three and moves a quarter more than is counted.

**Where the reference loses.** Per value it converts three tensors to fp32 (18 bytes), forms a sum and a difference
(24), selects twice (24) and converts back (12). These 78 bytes are {{ graded.reference_ratio }} times the 8 that count.
Its token index is one `int64` a token, of length `L`, which costs nothing in comparison.

**Then stream.** A token's row is {{ graded.row_bytes.min }} bytes or more and starts on a multiple of 128 bytes, so
every access can be 16 bytes wide and aligned without a mask, except that ranges must be cut at the end of a block and
of the sequence. A missed block copies `y` to `out`, a hit block copies `c` to `cache_out`; no value is used twice, so
hints that keep data from lingering in cache are worth a trial. What remains is to find how many bytes in flight the
memory system wants, and to balance the work when a request has few blocks or a short last one.""",
    precision_md="""Add and subtract in fp32 and round to bf16 once, to nearest even. The copied values are copied.

**The answer is unique.** Each computed value is one sum or difference of two bf16 numbers. bf16 has 8 significant bits
and fp32 has 24. Since 24 is at least 2 · 8 + 2, rounding a sum to fp32 and then to bf16 gives the same number as
rounding the exact sum to bf16 at once. Arithmetic in bf16, fp32 and float64 therefore agrees in every bit.{% if certificate %}
Two independent implementations, one in bf16 and one in float64, have an `E` of
{{ certificate.honest_error }} on all shapes and cases that were measured, and of {{ certificate.mutants }} damaged
references judged by their values {{ certificate.rejected }} are rejected (on {{ certificate.devices }}).{% endif %}

The tolerance {{ tol }} is therefore no allowance for rounding. It is set low so that a mistake in few tokens is still
seen in a large tensor. Formats narrower than bf16 cannot represent the answer and have no use here.""",
)
