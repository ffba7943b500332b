"""Spec of `conv3d-tiled-decode-blend`: causal 3D convolution of overlapping tiles, each zero-padded, then blended."""

from taskfactory import TaskSpec

SPEC = TaskSpec(
    name="conv3d-tiled-decode-blend",
    title="Tiled causal Conv3d with feathered blending",
    blurb="""Video decoders that do not fit in memory run on overlapping tiles. Each tile is convolved alone, with zeros around it
where the image goes on, so its outermost pixels come out wrong; the overlaps are then averaged with weights that fade
towards a tile's edge, which hides the seams. The task is that stage in one call: a causal 3×3×3 convolution of each
tile with its own padding, the weighted sum, and the division by the sum of the weights.""",
    keywords=("mle", "kernel-generation", "gpu", "conv3d", "causal", "tiling", "blending", "feather", "video", "vae",
              "decode", "wan", "hunyuanvideo"),
    version="1.0.0",
    difficulty="hard",
    authors=("taskfactory maintainers",),
    license="Apache-2.0",
    module="tiledconv3d.py",
    func="conv3d_tiled_decode_blend",
    signature="conv3d_tiled_decode_blend(x, weight, bias, origins, tile, overlap)",
    returns_doc="""Convolve each tile as a clip of its own and blend the results with feathered weights.

Args:
    x: (Cin, T, H, W) bfloat16, one clip without a batch axis.
    weight: (Cout, Cin, 3, 3, 3) bfloat16, taps in the order time, row, column.
    bias: (Cout,) bfloat16.
    origins: (Nt, 2) int32, row and column of each tile's first pixel.
    tile: int, height and width of a tile in pixels.
    overlap: int, width in pixels of the feather along each edge of a tile.

Returns:
    (Cout, T, H, W) bfloat16, the blended canvas.""",
    reference_imports="""import torch
import torch.nn.functional as F""",
    reference_src='''
def _feather(tile, overlap, device):
    """(tile, tile) float32 weights of one tile: a row profile times a column profile, each 1 except near its ends."""
    inward = torch.arange(1, tile + 1, dtype=torch.float32, device=device)  # distance from just outside the tile
    profile = (torch.minimum(inward, inward.flip(0)) / (overlap + 1)).clamp(max=1.0)
    return torch.outer(profile, profile)


def _causal_conv(clip, weight, bias):
    """clip (Cin, T, h, w) -> (Cout, T, h, w) in float32: zeros around each frame, two zero frames in front."""
    frames = F.pad(clip.float(), (0, 0, 0, 0, 2, 0))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return F.conv3d(frames[None], weight.float(), bias.float(), padding=(0, 1, 1)).squeeze(0)


def conv3d_tiled_decode_blend(x, weight, bias, origins, tile, overlap):
    """The truth, in float32 up to the last rounding: x (Cin, T, H, W) bfloat16 -> (Cout, T, H, W) bfloat16."""
    feather = _feather(tile, overlap, x.device)
    total = x.new_zeros((weight.shape[0], *x.shape[1:]), dtype=torch.float32)
    mass = x.new_zeros(x.shape[2:], dtype=torch.float32)
    for top, left in origins.tolist():
        window = (..., slice(top, top + tile), slice(left, left + tile))
        total[window] += _causal_conv(x[window], weight, bias) * feather
        mass[window] += feather
    return total.div_(mass).bfloat16()
''',
    make_inputs_src='''
def _mk(Cin, Cout, T, H, W, tile, stride, seed):
    """Normal x, weights that keep its variance, a small bias, the grid of tiles; the feather is tile - stride wide."""
    rng = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.bfloat16, device="cuda")

    x = normal(Cin, T, H, W)
    weight = normal(Cout, Cin, 3, 3, 3) * (1.0 / (Cin * 27) ** 0.5)
    bias = normal(Cout) * 0.1
    return x, weight, bias, _grid(H, W, tile, stride).to(x.device), tile, tile - stride


def _grid(H, W, tile, stride):
    """(Nt, 2) int32 on the CPU: every pair of a row start and a column start, in row-major order."""
    rows, columns = (torch.tensor(_tile_starts(n, tile, stride), dtype=torch.int32) for n in (H, W))
    return torch.cartesian_prod(rows, columns)
''',
    flops_src='''
def _tile_starts(n, tile, stride):
    """Starts 0, stride, 2*stride, ... of the tiles on an axis of n pixels; the last one is moved back to end at n."""
    steps = max(0, -((tile - n) // stride))  # (n - tile) / stride, rounded up
    return [max(0, min(i * stride, n - tile)) for i in range(steps + 1)]


def canonical_work(Cin, Cout, T, H, W, tile, stride):
    """FLOPs of one call, counted from the shape: each tile is convolved in full.

    A tile has Cout * T * tile * tile results, each a sum of 27 * Cin products: one multiplication and one addition
    apiece. Pixels in several tiles count once for each of them, whether or not a kernel shares that work, and
    padding counts like any other input. The blend is left out.
    """
    tiles = len(_tile_starts(H, tile, stride)) * len(_tile_starts(W, tile, stride))
    results = tiles * Cout * T * tile**2
    return results * 2 * 27 * Cin
''',
    flops_formula="2 * 27 * Cin * Cout * T * tile**2 * tiles",
    derived_src='''
def _cover(n, tile, stride):
    """Largest number of tiles that share a pixel of one axis; it is reached where a tile starts."""
    starts = _tile_starts(n, tile, stride)
    return max([len([s for s in starts if s <= p < s + tile]) for p in starts])


def _border_lines(n, tile, stride):
    """Number of rows (or columns) that are the first or last of a tile, those at the canvas edge not counted."""
    lines = []
    for start in _tile_starts(n, tile, stride):
        if start > 0:
            lines.append(start)
        if start + tile < n:
            lines.append(start + tile - 1)
    return len(set(lines))


def _last_step(n, tile, stride):
    """Distance between the last two tiles of an axis."""
    starts = _tile_starts(n, tile, stride)
    return starts[-1] - starts[-2] if len(starts) > 1 else stride


def derived(Cin, Cout, T, H, W, tile, stride):
    tiles = len(_tile_starts(H, tile, stride)) * len(_tile_starts(W, tile, stride))
    off_border = (1 - _border_lines(H, tile, stride) / H) * (1 - _border_lines(W, tile, stride) / W)
    minimum = floor(Cin, Cout, T, H, W, tile, stride)
    return {
        "tiles": tiles,
        "overlap": tile - stride,
        "tiled_ratio": tiles * tile * tile / (H * W),
        "floor_ratio": canonical_work(Cin, Cout, T, H, W, tile, stride) / minimum[1],
        "floor_intensity": minimum[1] / minimum[0],
        "cover": _cover(H, tile, stride) * _cover(W, tile, stride),
        "last_step": min(_last_step(H, tile, stride), _last_step(W, tile, stride)),
        "border_percent": 100 * (1 - off_border),
        "weight_kib": Cout * Cin * 27 * 2 / 1024,
        "input_mib": Cin * T * H * W * 2 / 2**20,
        "output_mib": Cout * T * H * W * 2 / 2**20,
        "gflop": canonical_work(Cin, Cout, T, H, W, tile, stride) / 1e9,
    }


def claims(Cin, Cout, T, H, W, tile, stride):
    figures = derived(Cin, Cout, T, H, W, tile, stride)
    covered = True
    for n in (H, W):
        starts = _tile_starts(n, tile, stride)
        reached = 0
        for start in starts:
            covered = covered and start <= reached and start + tile <= n
            reached = start + tile
        covered = covered and reached == n
    return {
        "Tiles lie inside the canvas and together cover every pixel.": covered,
        "Where feathers cross, a pixel belongs to four tiles or more.": figures["cover"] >= 4,
        "On at least one axis the last tile starts less than a stride after the one before.":
            figures["last_step"] < stride,
        "Such pixels are 3 to 5 percent of a canvas.": 3 <= figures["border_percent"] <= 5,
    }
''',
    floor_src='''
def floor(Cin, Cout, T, H, W, tile, stride):
    """(bytes, FLOPs) that cannot be avoided by a direct evaluation.

    Bytes: x, the weights, the bias and the origins are read once, the output is written once.

    FLOPs: overlapping tiles may share their work, since the blended result is one convolution of the canvas whose
    taps carry a weight per pixel: the share of blend weight of the tiles that contain the tap. On the grid, where
    neighbours overlap by two pixels or more, that share is positive for every tap inside the canvas, so each of them is
    multiplied and added once. Taps on the zeros outside the canvas and before the first frame need not be. Scaling the taps and the blend are not counted.

    This holds for summing the products term by term, as every fast kernel we know for this layer does. Nested Winograd
    transforms F(2, 3) need up to 27/8 times fewer multiplications, are exact in real arithmetic, and with bfloat16
    operands score 5e-3 (one and two dimensions: 3e-3 and 4e-3 for 3/2 and 9/4 times fewer). A time below this bound
    would have to come from such a scheme, and deserves a look before it is called impossible.
    """
    in_time = T + max(0, T - 1) + max(0, T - 2)
    in_space = (3 * H - 2) * (3 * W - 2)
    tiles = len(_tile_starts(H, tile, stride)) * len(_tile_starts(W, tile, stride))
    elements = (Cin + Cout) * T * H * W + 27 * Cin * Cout + Cout
    return 2 * elements + 8 * tiles, 2 * Cin * Cout * in_time * in_space
''',
    # Values stay as they are: default values already show every shortcut on a value that we tried, and the tile gate judges
    # each channel by its own size. What a submission could take for granted is the grid.
    timed_src='''
def _moved(n, tile, stride, rng):
    """Starts of the tiles on an axis of n pixels, all but the first and the last up to tile - stride - 2 pixels earlier.

    Neighbours share two pixels or more, as the floor asks for, so no pixel is left out; no start occurs twice.
    """
    starts = torch.tensor(_tile_starts(n, tile, stride), dtype=torch.int32, device=rng.device)
    most = max(0, min(tile - stride - 2, stride - 1))
    earlier = torch.randint(most + 1, starts.shape, generator=rng, dtype=torch.int32, device=rng.device)
    earlier[0] = earlier[-1] = 0
    return starts - earlier


def mix(Cin, Cout, T, H, W, tile, stride, seed):
    """Rows and columns of tiles, other than the first and the last, are moved up or left by random numbers of pixels, and the
    tiles come in random order."""
    x, weight, bias, _, tile, overlap = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    rng = torch.Generator(device=x.device).manual_seed(seed + 1)
    origins = torch.cartesian_prod(*(_moved(n, tile, stride, rng) for n in (H, W)))
    return x, weight, bias, origins[torch.randperm(len(origins), generator=rng, device=x.device)], tile, overlap
''',
    cases_src='''
def case_irregular_origins(Cin, Cout, T, H, W, tile, stride, seed):
    """Tiles placed at random, without a grid and in random order, until every pixel is covered."""
    x, weight, bias, _, tile, overlap = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    rng = torch.Generator().manual_seed(seed)

    def between(low, high):
        return int(torch.randint(low, high + 1, (), generator=rng))

    free = torch.ones(H, W, dtype=torch.bool)
    chosen = set()
    while free.any():
        places = free.nonzero()
        y, c = places[between(0, len(places) - 1)].tolist()
        top = between(max(0, y - tile + 1), min(y, H - tile))
        left = between(max(0, c - tile + 1), min(c, W - tile))
        chosen.add((top, left))
        free[top : top + tile, left : left + tile] = False
    order = torch.randperm(len(chosen), generator=rng)
    origins = torch.tensor(sorted(chosen), dtype=torch.int32)[order]
    return x, weight, bias, origins.to(x.device), tile, overlap


def case_no_feather(Cin, Cout, T, H, W, tile, stride, seed):
    """Overlapping tiles with overlap = 0: a plain mean."""
    return (*_mk(Cin, Cout, T, H, W, tile, stride, seed)[:5], 0)


def case_abutting_tiles(Cin, Cout, T, H, W, tile, stride, seed):
    """Tiles side by side without a feather: nothing hides the seams. Only the last of a row or column overlaps."""
    x, weight, bias, _, tile, _ = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    return x, weight, bias, _grid(H, W, tile, tile).to(x.device), tile, 0


def case_wide_feather(Cin, Cout, T, H, W, tile, stride, seed):
    """A feather wider than half a tile: the profile has no flat part."""
    return (*_mk(Cin, Cout, T, H, W, tile, stride, seed)[:5], tile - 3)


def case_small_tiles(Cin, Cout, T, H, W, tile, stride, seed):
    """Tiles of 11 pixels, 7 apart, with a feather that is not their overlap."""
    x, weight, bias, *_ = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    return x, weight, bias, _grid(H, W, 11, 7).to(x.device), 11, 2


def case_single_tile(Cin, Cout, T, H, W, tile, stride, seed):
    """One tile as large as the canvas, which only a square canvas allows."""
    if H != W:
        return None
    x, weight, bias, *_, overlap = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    return x, weight, bias, torch.zeros(1, 2, dtype=torch.int32, device=x.device), H, overlap


def case_wide_range(Cin, Cout, T, H, W, tile, stride, seed):
    """Input frames, bands of columns and output channels on different scales, eight octaves in all."""
    x, weight, bias, *rest = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    frames, columns, outputs = (torch.arange(n, device=x.device) for n in (T, W, Cout))
    bands = torch.exp2((columns // 16 % 3 - 1).float()).to(x.dtype)
    times = torch.exp2((frames % 2).float()).to(x.dtype)
    rows = torch.exp2((outputs % 6 - 3).float()).to(x.dtype)
    return x * bands * times[:, None, None], weight * rows.view(-1, 1, 1, 1, 1), bias * rows, *rest


def case_large_bias(Cin, Cout, T, H, W, tile, stride, seed):
    """A bias 30 times as large, which must arrive once on every pixel whatever the number of tiles."""
    x, weight, bias, *rest = _mk(Cin, Cout, T, H, W, tile, stride, seed)
    return x, weight, 30 * bias, *rest
''',
    regions_src='''
def regions(x, weight, bias, origins, tile, overlap):
    """Pixels on the one-pixel border of any tile, where the canvas goes on beyond that border."""
    H, W = x.shape[2:]
    on_border = torch.zeros(H, W, dtype=torch.bool, device=x.device)
    for top, left in origins.tolist():
        bottom, right = top + tile - 1, left + tile - 1
        for row in (top, bottom):
            if 0 < row < H - 1:
                on_border[row, left : right + 1] = True
        for column in (left, right):
            if 0 < column < W - 1:
                on_border[top : bottom + 1, column] = True
    return {"tile_border": ("out", on_border, 8e-3)}
''',
    alternates={
        "weighted_taps": '''
def weighted_taps(x, weight, bias, origins, tile, overlap):
    """One convolution of the canvas; each of the nine spatial taps is scaled per pixel by the share of blend weight of
    the tiles in which pixel and tap lie together. Exact: the blend is linear, and padding is a tap that a tile lacks."""
    H, W = x.shape[2:]
    feather = _feather(tile, overlap, x.device)
    held = torch.zeros(3, 3, H, W, device=x.device)
    for top, left in origins.tolist():
        for i in range(3):
            for j in range(3):
                # pixels p of the tile with p + (i - 1, j - 1) in the tile too
                ys, xs = (slice(max(0, 1 - d), tile - max(0, d - 1)) for d in (i, j))
                held[i, j, top : top + tile, left : left + tile][ys, xs] += feather[ys, xs]
    share = held / held[1, 1]
    padded = F.pad(x.float(), (1, 1, 1, 1, 2, 0))
    out = bias.float().view(-1, 1, 1, 1)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for i in range(3):
            for j in range(3):
                tap = weight[..., i : i + 1, j : j + 1].float()
                out = out + F.conv3d(padded[None, ..., i : i + H, j : j + W], tap)[0] * share[i, j]
    return out.bfloat16()
''',
        "shifted_products": '''
def shifted_products(x, weight, bias, origins, tile, overlap):
    """Each tile as 27 matrix products of shifted inputs; bfloat16 results per tile, blended in float32."""
    feather = _feather(tile, overlap, x.device)
    T = x.shape[1]
    total = torch.zeros(weight.shape[0], *x.shape[1:], device=x.device)
    mass = torch.zeros(x.shape[2:], device=x.device)
    for top, left in origins.tolist():
        crop = F.pad(x[:, :, top : top + tile, left : left + tile].float(), (1, 1, 1, 1, 2, 0))
        out = bias.float().view(-1, 1, 1, 1)
        for tap in range(27):
            t, i, j = tap // 9, tap // 3 % 3, tap % 3
            shifted = crop[:, t : t + T, i : i + tile, j : j + tile]
            out = out + torch.tensordot(weight[:, :, t, i, j].float(), shifted, 1)
        total[:, :, top : top + tile, left : left + tile] += out.bfloat16().float() * feather
        mass[top : top + tile, left : left + tile] += feather
    return (total / mass).bfloat16()
''',
    },
    ablations={
        "regular_grid": '''
def regular_grid(x, weight, bias, origins, tile, overlap):
    """Takes the tiles from the sizes, a stride of tile - overlap apart, and never reads `origins`."""
    grid = _grid(*x.shape[2:], tile, tile - overlap).to(x.device)
    return conv3d_tiled_decode_blend(x, weight, bias, grid, tile, overlap)
''',
        "halo_exchange": '''
def halo_exchange(x, weight, bias, origins, tile, overlap):
    """Tiles see their neighbours' pixels. All tiles then agree where they overlap, and the blend changes nothing."""
    return _causal_conv(x, weight, bias).bfloat16()
''',
        "uniform_blend": '''
def uniform_blend(x, weight, bias, origins, tile, overlap):
    """A plain mean of the tiles that cover a pixel."""
    return conv3d_tiled_decode_blend(x, weight, bias, origins, tile, 0)
''',
        "undivided": '''
def undivided(x, weight, bias, origins, tile, overlap):
    """Without the division by the sum of the weights."""
    feather = _feather(tile, overlap, x.device)
    mass = torch.zeros(x.shape[2:], device=x.device)
    for top, left in origins.tolist():
        mass[top : top + tile, left : left + tile] += feather
    return (conv3d_tiled_decode_blend(x, weight, bias, origins, tile, overlap).float() * mass).bfloat16()
''',
        "replicated_first_frame": '''
def replicated_first_frame(x, weight, bias, origins, tile, overlap):
    """Two copies of frame 0 in front instead of two frames of zeros."""
    longer = torch.cat((x[:, :1], x[:, :1], x), 1)
    return conv3d_tiled_decode_blend(longer, weight, bias, origins, tile, overlap)[:, 2:].contiguous()
''',
        "centred_in_time": '''
def centred_in_time(x, weight, bias, origins, tile, overlap):
    """One frame of zeros on either side: a frame sees the next one."""
    longer = torch.cat((x, torch.zeros_like(x[:, :1])), 1)
    return conv3d_tiled_decode_blend(longer, weight, bias, origins, tile, overlap)[:, 1:].contiguous()
''',
        "without_bias": '''
def without_bias(x, weight, bias, origins, tile, overlap):
    """The bias is not added."""
    return conv3d_tiled_decode_blend(x, weight, torch.zeros_like(bias), origins, tile, overlap)
''',
        "last_tile_wins": '''
def last_tile_wins(x, weight, bias, origins, tile, overlap):
    """Later tiles overwrite earlier ones."""
    out = x.new_zeros((weight.shape[0], *x.shape[1:]))
    for top, left in origins.tolist():
        window = (..., slice(top, top + tile), slice(left, left + tile))
        out[window] = _causal_conv(x[window], weight, bias).bfloat16()
    return out
''',
        "fp8_channels": '''
def fp8_channels(x, weight, bias, origins, tile, overlap):
    """One output channel in twelve from fp8 operands; few enough to pass a norm over the whole output."""

    def coarse(values):
        return values.float().to(torch.float8_e4m3fn).float()

    out = conv3d_tiled_decode_blend(x, weight, bias, origins, tile, overlap)
    some = slice(0, None, 12)
    out[some] = conv3d_tiled_decode_blend(
        coarse(x), coarse(weight[some] * 64) / 64, bias[some], origins, tile, overlap
    )
    return out
''',
    },
    survivors={
        "shapes.working_set": "the two smallest clips with their results, 177 and 236 MB, are three to four times the L2 "
        "of an H200; the tensor cores and not memory bound this layer, and a grading overwrites the L2 before each call",
    },
    output_dtypes=(("bfloat16",),),
    metric="TFLOP/s",
    compare="tensor",
    tol=1.2e-2,
    tile_kappa=1.0,
    shape_names=("Cin", "Cout", "T", "H", "W", "tile", "stride"),
    grader_shapes=(
        (64, 64, 9, 320, 320, 112, 80),
        (96, 96, 5, 384, 384, 128, 96),
        (128, 64, 7, 256, 256, 96, 64),
        (64, 128, 9, 240, 320, 96, 72),
        (96, 96, 9, 288, 288, 96, 72),
    ),
    measure_shapes=(
        (64, 64, 7, 320, 320, 112, 80),
        (96, 96, 5, 320, 320, 128, 96),
        (128, 64, 5, 256, 256, 96, 64),
        (64, 128, 7, 240, 320, 96, 72),
        (96, 96, 7, 288, 288, 96, 72),
    ),
    measure_quick_shapes=(
        (32, 32, 3, 128, 128, 64, 48),
        (64, 32, 3, 160, 160, 64, 48),
        (32, 64, 5, 96, 128, 48, 32),
    ),
    correct_shapes=(
        (16, 24, 3, 48, 80, 32, 24),
        (32, 16, 5, 37, 53, 24, 16),
        (24, 24, 2, 64, 64, 40, 24),
        (16, 32, 4, 45, 61, 32, 20),
    ),
    spec_md="""The input is one clip `x` and a list of square tiles, given by the row and column of their first pixel. Each tile is
convolved on its own; the results are weighted, added up on the canvas, and divided by the sum of the weights.

**One tile.** For the tile at `(top, left)`, with `c` running over `Cin` and `(t, y, z)` over frames, rows and columns
of the tile:

```
p[c, t, y, z]   = x[c, t, top + y, left + z]     if 0 <= y < tile, 0 <= z < tile and t >= 0
                = 0                              otherwise

o[d, t, y, z]   = bias[d] + sum over c and dt, dy, dz in 0..2 of
                  weight[d, c, dt, dy, dz] * p[c, t + dt - 2, y + dy - 1, z + dz - 1]
```

*The padding belongs to the tile.* One pixel of zeros surrounds each tile on all four sides, also where `x` has pixels
there. A kernel that reads those pixels instead, a halo exchange, computes another function and is rejected; see
*Correctness*. At the sides of a tile that coincide with the canvas edge the two are the same.

*Time is causal.* Output frame `t` depends on the frames `t - 2`, `t - 1` and `t`, and the two frames before the first
are zero. The taps `weight[:, :, 2]` act on the current frame.

**The feather.** With `ov = overlap`, one profile serves rows and columns:

```
profile[i]    = min(1, (i + 1) / (ov + 1), (tile - i) / (ov + 1))        i = 0 .. tile - 1
feather[y, z] = profile[y] * profile[z]                                  > 0 everywhere
```

**The blend.** Sums run over the tiles that contain the canvas pixel `(Y, X)`, which is `(Y - top, X - left)` in such
a tile:

```
out[d, t, Y, X] = sum feather * o[d, t]  /  sum feather                  rounded to bfloat16
```

Tiles lie inside the canvas and together cover every pixel. So the denominator is positive; it depends neither on the
channel nor on the frame.

`reference.py` does this one tile after the other in float32. It is written to be read; its speed plays no part in
your score.""",
    contract_md="""| argument | shape | dtype | meaning |
|---|---|---|---|
| `x` | `(Cin, T, H, W)` | `bfloat16` | the clip, without a batch axis |
| `weight` | `(Cout, Cin, 3, 3, 3)` | `bfloat16` | taps in the order time, row, column |
| `bias` | `(Cout,)` | `bfloat16` | added once to each convolution result |
| `origins` | `(Nt, 2)` | `int32` | row and column of each tile's first pixel, on the device |
| `tile` | — | `int` | height and width of every tile |
| `overlap` | — | `int` | width `ov` of the feather |

| result | shape | dtype |
|---|---|---|
| `out` | `(Cout, T, H, W)` | `bfloat16`, no other |

- Tiles do not leave the canvas, no pixel is left uncovered, and no tile occurs twice. Nothing else is promised of
  `origins`: timed calls have grids whose lines are moved at random from call to call and whose tiles come in random
  order, and the checks include tiles at random places.
- Even the unmoved grid is not regular: its last row and column of tiles are moved back to end at the canvas edge.
- Any number of tiles may cover a pixel: up to {{ graded.cover.max }} on the unmoved graded grids, more where tiles are
  moved or placed at random.
- `0 <= overlap < tile`. It is the width of the feather and need not equal the overlap of neighbouring tiles; it may
  exceed half a tile, and 0 means a plain mean.
- The values of `origins` are data like those of `x`: read them in every call, and derive nothing from an earlier
  call.
- `Cin`, `Cout`, `H`, `W` and `tile` need not be multiples of anything. The correctness shapes have `Cout` of
  {{ correct.Cout.values }} and `W` of {{ correct.W.values }}.
- Tensors are contiguous, finite and on one device; the inputs are read-only.""",
    regime_md="""The graded shapes are not disclosed. They lie in these ranges:

| | graded | `measure.py` |
|---|---|---|
| `Cin` | {{ graded.Cin.values }} | {{ measure.Cin.values }} |
| `Cout` | {{ graded.Cout.values }} | {{ measure.Cout.values }} |
| frames `T` | {{ graded.T }} | {{ measure.T }} |
| canvas height, width | {{ graded.H }}, {{ graded.W }} | {{ measure.H }}, {{ measure.W }} |
| `tile` | {{ graded.tile }} | {{ measure.tile }} |
| `overlap` | {{ graded.overlap }} | {{ measure.overlap }} |
| tiles | {{ graded.tiles }} | {{ measure.tiles }} |
| most tiles on one pixel | {{ graded.cover.values }} | {{ measure.cover.values }} |
| pixels of all tiles / pixels of the canvas | {{ graded.tiled_ratio | digits(2) }} | {{ measure.tiled_ratio | digits(2) }} |
| pixels on a tile border inside the canvas | {{ graded.border_percent | digits(1) }} % | {{ measure.border_percent | digits(1) }} % |
| weights | {{ graded.weight_kib }} KiB | {{ measure.weight_kib }} KiB |
| input, output | {{ graded.input_mib | digits(0) }}, {{ graded.output_mib | digits(0) }} MiB | {{ measure.input_mib | digits(0) }}, {{ measure.output_mib | digits(0) }} MiB |
| counted GFLOP | {{ graded.gflop | thousands }} | {{ measure.gflop | thousands }} |

This is one layer of a video decoder in tiled mode, with fewer and smaller tiles than a full film frame would need, so
that the float32 reference stays affordable. Where feathers cross, a pixel belongs to four tiles or more. On at least
one axis the last tile starts less than a stride after the one before.""",
    correctness_md="""`out` is compared with the reference by the relative error `‖o − r‖ / ‖r‖`, three times: over the whole output, where
the tolerance is {{ tol }}; over every run of 4096 consecutive entries, where the factor is {{ kappa }}; and over the
*tile-border pixels*, all channels and frames together, where the bound is {{ regions.tile_border }}. A tile-border
pixel lies on the outermost row or column of some tile, and that row or column is not at the edge of the canvas.

The third comparison exists because what defines this operator is confined to few pixels. Away from its border a tile
computes exactly what a convolution of the whole canvas would, so ignoring the tiles altogether goes wrong on
tile-border pixels only. Such pixels are {{ graded.border_percent | digits(1) }} percent of a graded canvas, and even
there the feather hides most of the fault.{% if certificate %} On the tile-border pixels of the correctness shapes a
plain convolution of the canvas scores {{ certificate.ablations.halo_exchange.regions.tile_border.default }}, and a
correct one that rounds the result of each tile to bfloat16 before the blend
{{ certificate.alternates.shifted_products.regions.tile_border.default }}.{% if certificate.gpu %} At the graded shapes
it is {{ certificate.ablations.halo_exchange.regions.tile_border.graded }} and
{{ certificate.alternates.shifted_products.regions.tile_border.graded }} there, while over the whole output the plain
convolution scores {{ certificate.ablations.halo_exchange.graded }}, and the tolerance is {{ tol }}.{% endif %}
(Measured on {{ certificate.devices }}.){% endif %}""",
    perf_md="""**Shared work is allowed.** The count takes every tile in full, {{ graded.tiled_ratio | digits(2) }} times the canvas.
Yet two tiles disagree about a pixel only if it is on the border of one of them. The blend is linear, and a tile's
padding amounts to taps which that tile lacks; so the whole operator is *one* convolution of the canvas whose spatial
tap `(dy, dz)` at pixel `p` is multiplied by

```
                   sum of feather(p) over the tiles that contain both p and p + (dy - 1, dz - 1)
share[dy, dz](p) = -----------------------------------------------------------------------------
                   sum of feather(p) over the tiles that contain p
```

The share is 1 unless `p` is a tile-border pixel or the tap falls outside the canvas, where it reads a zero anyway.
This is a rearrangement, not an approximation, and without the taps that fall outside the canvas and before the first
frame it leaves the counted FLOPs divided by {{ graded.floor_ratio | digits(2) }}. A kernel may as well convolve the
canvas and repair border pixels, or take tile by tile and spend the full count.

**Shares are geometry.** They follow from `origins`, `tile` and `overlap`, are the same for all channels and frames,
and are a sum over few tiles per pixel. Compute them in a small kernel in front, or on the fly from the profile;
reading `origins` back to the host stalls the device.

**If you go tile by tile**, let each program own a piece of the canvas, find the tiles that meet it, and combine their
results in registers: the canvas is then written once, without atomics. Do not build the list of tiles for a fixed
maximum of four.

**Keep the accumulators where they are.** Bias, feather and division are an epilogue. The reference instead writes
each tile's convolution in float32 and reads it again.

**The convolution.** As a matrix product it has `27 * Cin` inner terms and `Cout` columns, and about
{{ graded.floor_intensity }} unavoidable FLOP per unavoidable byte, so it is bound by the tensor cores. Pixels along
`W` are contiguous, channels are not. An input row on chip serves three output rows, three columns of taps, and three
output frames: keeping several output frames in flight cuts the traffic from L2 to the SMs, and forming the im2col
matrix in memory would multiply the input by 27. Frames 0 and 1 lack one or two of the three temporal taps, which can
be skipped.

**Weights.** They take {{ graded.weight_kib }} KiB, and a block may use 227 KiB of shared memory on an H100 or H200:
with most channel counts they do not fit, and with the smallest they leave no room for anything else. Stream them by
tap and block of channels; they stay in L2.""",
    precision_md="""Inputs and output are bfloat16. Accumulate the convolution in float32, and keep feather, blend and division in
float32: these are the reference's precisions, and the products of two bfloat16 numbers are exact in float32.

With float32 sums in another order a few results round to the neighbouring bfloat16. Rounding each tile's result to
bfloat16 before the blend is accepted; rounding every sum to bfloat16 is too, but it is avoidable.{% if certificate %}
What that costs at the correctness shapes: another order gives an error of at most
{{ certificate.alternates.weighted_taps.worst.max }}; tiles in bfloat16 give
{{ certificate.alternates.shifted_products.default }} over the whole output and
{{ certificate.alternates.shifted_products.regions.tile_border.default }} on the tile-border pixels, with any of the
special inputs up to {{ certificate.alternates.shifted_products.use }} of what is allowed; all sums in bfloat16 give
{{ certificate.precision.bf16.sums.default }} and {{ certificate.precision.bf16.sums.regions.tile_border.default }}
(measured on {{ certificate.devices }}).{% endif %}

fp8 operands are not accurate enough. With one output channel in twelve computed from them, the whole output may still
come out below {{ tol }}, but each run of 4096 entries in such a channel is off.{% if certificate %} With the default
inputs the whole scores {{ certificate.ablations.fp8_channels.default }}, and the worst run is
{{ certificate.ablations.fp8_channels.tiles.default }} tolerances off, where {{ kappa }} is allowed.{% endif %}

What is not rounding is far beyond the gates: a plain mean instead of the feather, no division by the sum of the weights,
the first frame repeated in place of zeros, frames centred in time, no bias.{% if certificate %} Their errors over the
whole output of the correctness shapes are, in this order, {{ certificate.ablations.uniform_blend.default }},
{{ certificate.ablations.undivided.default }}, {{ certificate.ablations.replicated_first_frame.default }},
{{ certificate.ablations.centred_in_time.default }}, and {{ certificate.ablations.without_bias.default }}. The nearest
wrong answer is {{ certificate.wrong_margin }} times what is allowed; of {{ certificate.mutants }} damaged references
judged by their values {{ certificate.rejected }} are rejected.{% endif %}""",
)
