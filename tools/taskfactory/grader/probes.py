"""What a trusted worker runs instead of a submission: nothing, or work whose duration is known.

The null call launches one tiny kernel, so that it contains what no submission can skip (the switch to the worker's
GPU context and back) and nothing else. Copies and matrix products serve to compare the two clocks; passes are the work
that the sweeps against an adversary give to a worker they do not trust.
"""

from __future__ import annotations

from typing import Any

import torch

from .memory import copy_bits


class Probes:
    """Keeps the buffers of its probes alive between calls, as a caching allocator would for a submission."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._tiny = torch.zeros(1, device=device)
        self._buffers: dict[Any, Any] = {}

    def run(self, probe: dict[str, Any]) -> list[torch.Tensor]:
        """Run one probe and return tensors of the shapes and dtypes it names.

        Args:
            probe: "kind" ("null", "copy", "passes" or "matmul"), "amount" (bytes copied or added to; edge of the bf16
                matrices), "repeat" and "outputs": a list of {"shape", "dtype"}.
        """
        if probe["kind"] == "null":
            self._tiny.add_(1)
        elif probe["kind"] == "copy":
            source, target = self._pair(probe["amount"] // 8 * 8)
            for _ in range(probe["repeat"]):
                copy_bits(target, source)
        elif probe["kind"] == "passes":
            source, target = self._pair(probe["amount"] // 8 * 8)
            for k in range(probe["repeat"]):
                torch.add(target if k else source, 1, out=target)
        else:
            a, b, c = self._matrices(probe["amount"])
            for _ in range(probe["repeat"]):
                torch.mm(a, b, out=c)
        return [self._output(tuple(o["shape"]), o["dtype"], k) for k, o in enumerate(probe["outputs"])]

    def _pair(self, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = ("copy", nbytes)
        if key not in self._buffers:
            source = torch.randint(1 << 60, (nbytes // 8,), device=self.device)
            self._buffers[key] = (source, torch.empty_like(source))
        return self._buffers[key]  # type: ignore[no-any-return]

    def _matrices(self, edge: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        key = ("matmul", edge)
        if key not in self._buffers:
            a, b = (torch.randn(edge, edge, device=self.device).bfloat16() for _ in range(2))
            self._buffers[key] = (a, b, torch.empty_like(a))
        return self._buffers[key]  # type: ignore[no-any-return]

    def _output(self, shape: tuple[int, ...], dtype: str, index: int) -> torch.Tensor:
        key = ("output", shape, dtype, index)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
        return self._buffers[key]  # type: ignore[no-any-return]
