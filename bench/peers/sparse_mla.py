"""Peer of sparse MLA: FlashMLA's sparse operator for sm90, as the sglang-kernel wheel ships it.

The operator is FlashMLA's for prefill, with a query token a request: the one of its sparse operators that takes a bf16
cache. It wants q (tokens, heads, 576), kv (rows, 1, 576) and indices (tokens, 1, K), which are views of our arguments:
nothing is converted. It returns (out, maximum logits, log-sum-exp), of which the first is compared.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from peers.contest import Call, Contestant, Problem, Unavailable

OPERATOR = Path("sgl_kernel/flashmla_ops.abi3.so")
HEADS, ROWS, WIDTH, VALUE_WIDTH = 64, 64, 576, 512
"""The kernel's tiles: heads and listed rows come in multiples of these; widths are fixed."""
_LIBRARIES = ("libcudart.so.13", "libnvrtc.so.13")
_loaded = False


def _load() -> None:
    """Register the operator with torch. Only its library is loaded, so the rest of the wheel need not be installed."""
    global _loaded
    if _loaded:
        return
    path = next((Path(p) / OPERATOR for p in sys.path if (Path(p) / OPERATOR).is_file()), None)
    if path is None:
        raise Unavailable(f"{OPERATOR} is not on the path; see bench/peers/install.py")
    for library in _LIBRARIES:
        _preload(library)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # built against another torch or CUDA
        raise Unavailable(f"{OPERATOR} does not load: {error}") from None
    _loaded = True


def _preload(name: str) -> None:
    """Load a CUDA library that the operator names, from beside torch's own if the loader does not find it."""
    folders = [Path(p) / "nvidia" for p in sys.path]
    places = [place for folder in folders for place in sorted(folder.glob(f"*/lib/{name}"))]
    for candidate in (name, *map(str, places), f"/usr/local/cuda/lib64/{name}"):
        try:
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def _flash_mla(problem: Problem) -> Call:
    q, pool, indices, dv, scale = problem.args
    (_, heads, width), rows = q.shape, indices.shape[1]
    if (width, dv) != (WIDTH, VALUE_WIDTH) or heads % HEADS or rows % ROWS:
        raise Unavailable(f"FlashMLA's sm90 kernel takes widths {WIDTH}/{VALUE_WIDTH} and multiples of 64")
    _load()
    operator = torch.ops.sgl_kernel.sparse_prefill_fwd.default
    factor = width**-0.5 if scale is None else scale
    rows_of_one_head, lists = pool[:, None], indices[:, None]
    return lambda: operator(q, rows_of_one_head, lists, factor, dv, None, None)[0]


CONTESTANTS = (
    Contestant("FlashMLA", "peer", "its sparse bf16 operator for sm90, from the sglang-kernel wheel", _flash_mla),
)
