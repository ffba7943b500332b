"""torch.compile as a peer: one graph, static shapes, compiled anew for each shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` under torch.compile.

    A graph break is an error. Dynamo is reset first: beyond a few shapes it would fall back to eager without a word.
    """
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)
