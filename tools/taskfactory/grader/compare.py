"""Compare outputs with the reference's: exact for integers, relative Frobenius error for floats, tile by tile too.

For a float output with entries o and reference r, over the entries where r is finite, in float64:

    E = ||o - r|| / ||r||                        global gate:   E <= tol
    ||o - r||_t <= kappa tol max(||r||_t, eps M)   tile gate:     for every tile t of 4096 consecutive entries,
                                                              M = median over tiles of ||r||_t
    ||o - r||_g <= tol_g ||r||_g                    region gate:   for every declared region g

The tile gate exists because a global norm forgives a wrong part whose norm is small; the region gate because a task's
author knows where a shortcut hides. Work is done in chunks, so no second copy of an output in float64 is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

TILE = 4096
"""Entries per tile, consecutive in the reference's contiguous order."""
CHUNK = TILE * 4096
"""Entries compared at a time (16.8 million, 134 MB in float64)."""
FLOAT_DTYPES = ("bfloat16", "float32")
"""Dtypes in which a float output may be returned unless the task says otherwise."""
SHOWN = 5
"""How many differing coordinates a report names."""


@dataclass(frozen=True)
class Gates:
    """The numbers a float output is judged by."""

    tol: float
    kappa: float = 4.0
    epsilon: float = 0.1


@dataclass(frozen=True)
class Region:
    """A declared part of one output with its own tolerance; `mask` is a bool tensor broadcastable to the output."""

    name: str
    output: int
    mask: torch.Tensor
    tol: float


@dataclass
class OutputReport:
    """How one output compared. `failure` is empty if it passed, else one of the statuses of `result.Status`."""

    name: str
    failure: str = ""
    message: str = ""
    error: float = 0.0
    """E over the whole output (0.0 for integers that agree, 1.0 for integers that do not)."""
    tile_ratio: float = 0.0
    """Worst tile's ||o - r|| / (tol max(||r||, eps M)); the gate is kappa."""
    regions: dict[str, float] = field(default_factory=dict)
    """E of each declared region."""
    differences: list[dict[str, Any]] = field(default_factory=list)
    """The first differing coordinates with both values; private to the evaluator."""


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def allowed_dtypes(expected: torch.dtype, declared: Sequence[str] | None) -> tuple[str, ...]:
    """Dtypes an output may have: the declared ones, else the reference's own or, for floats, bfloat16 or float32."""
    if declared:
        return tuple(declared)
    return FLOAT_DTYPES if expected.is_floating_point else (dtype_name(expected),)


def structure_failure(
    expected: torch.Tensor, shape: Sequence[int], dtype: str, declared: Sequence[str] | None
) -> tuple[str, str]:
    """(status, message) if an output's shape or dtype is not the reference's, else two empty strings."""
    if tuple(shape) != tuple(expected.shape):
        return "wrong_shape", f"shape {tuple(shape)}, expected {tuple(expected.shape)}"
    allowed = allowed_dtypes(expected.dtype, declared)
    if dtype not in allowed:
        return "wrong_dtype", f"dtype {dtype}, expected {' or '.join(allowed)}"
    return "", ""


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    """A reference's return value as a tuple of tensors."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def compare_outputs(
    expected: Sequence[torch.Tensor],
    actual: Sequence[torch.Tensor],
    names: Sequence[str],
    gates: Gates,
    dtypes: Sequence[Sequence[str] | None] | None = None,
    regions: Sequence[Region] = (),
) -> list[OutputReport]:
    """Compare all outputs of one call; the call passed if no report has a `failure`.

    Args:
        expected: the reference's outputs, any device.
        actual: the submission's outputs on the same device; count already checked by the caller.
        names: one name an output.
        gates: global tolerance and tile gate.
        dtypes: declared dtype names per output, or None for the defaults.
        regions: declared regions.
    """
    declared = dtypes or [None] * len(expected)
    reports = []
    for index, (r, o) in enumerate(zip(expected, actual, strict=True)):
        report = OutputReport(names[index])
        report.failure, report.message = structure_failure(r, o.shape, dtype_name(o.dtype), declared[index])
        if not report.failure:
            if r.is_floating_point():
                _compare_floats(r, o, gates, [g for g in regions if g.output == index], report)
            else:
                _compare_exactly(r, o, report)
        reports.append(report)
    return reports


def _compare_exactly(r: torch.Tensor, o: torch.Tensor, report: OutputReport) -> None:
    if torch.equal(r, o):
        return
    wrong = int((r != o).sum())
    report.failure, report.error = "incorrect", 1.0
    report.message = f"{report.name}: {wrong} of {r.numel()} entries differ; this output is compared exactly"
    report.differences = _differences(r, o, (r != o).reshape(-1))


def _compare_floats(
    r: torch.Tensor, o: torch.Tensor, gates: Gates, regions: Sequence[Region], report: OutputReport
) -> None:
    if r.dtype == o.dtype and torch.equal(r, o):  # the common case of bit-exact operators, one cheap pass
        report.regions = {g.name: 0.0 for g in regions if bool(g.mask.any())}
        return
    flat_r, flat_o = r.reshape(-1), o.reshape(-1)
    masks = [region.mask.to(r.device).expand(r.shape).reshape(-1) for region in regions]
    tile_d, tile_r = [], []
    region_d, region_r = [0.0] * len(regions), [0.0] * len(regions)
    for start in range(0, flat_r.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        squares = _squares(flat_r[part], flat_o[part])
        if squares is None:
            report.failure, report.error = "not_finite", math.inf
            report.message = f"{report.name}: NaN or infinity where the reference has none, or the other way round"
            report.differences = _differences(r, o, _non_finite_mismatch(flat_r, flat_o))
            return
        dd, rr = squares
        for k, mask in enumerate(masks):
            region_d[k] += float((dd * mask[part]).sum())
            region_r[k] += float((rr * mask[part]).sum())
        tile_d.append(_tile_sums(dd))
        tile_r.append(_tile_sums(rr))
    if not tile_d:
        return
    d2, r2 = torch.cat(tile_d), torch.cat(tile_r)
    report.error = _ratio(math.sqrt(float(d2.sum())), math.sqrt(float(r2.sum())))
    norms = r2.sqrt()
    scale = gates.tol * torch.clamp(norms, min=gates.epsilon * float(norms.median()))
    report.tile_ratio = float(torch.where(d2 > 0, d2.sqrt() / scale, 0.0).max())
    report.regions = {
        g.name: _ratio(math.sqrt(region_d[k]), math.sqrt(region_r[k])) for k, g in enumerate(regions) if masks[k].any()
    }
    broken = _broken_gates(report, gates, regions)
    if broken:
        report.failure = "incorrect"
        report.message = f"{report.name}: " + "; ".join(broken)
        report.differences = _differences(r, o, _notable(flat_r, flat_o, gates.tol))


def _squares(r: torch.Tensor, o: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(o - r)^2 and r^2 in float64, zero where the reference is not finite; None if non-finite entries differ.

    Squares are finite exactly if both entries are (or so large that they overflow), and one sum over them says so. What
    has to be looked at entry by entry is therefore rare, and the usual case takes a third of the passes over memory.
    """
    rr = r.to(torch.float64, copy=True)  # of a float64 output `double` would be the output itself
    dd = o.to(torch.float64, copy=True).sub_(rr).square_()
    rr.square_()
    if bool(torch.isfinite(dd.sum() + rr.sum())):
        return dd, rr
    rc, oc = r.double(), o.double()
    finite = torch.isfinite(rc)
    if not _same_non_finite(rc, oc, finite):
        return None
    rc = torch.where(finite, rc, 0.0)
    return torch.where(finite, oc - rc, 0.0).square_(), rc.square_()


def _broken_gates(report: OutputReport, gates: Gates, regions: Sequence[Region]) -> list[str]:
    """One phrase a broken gate. `not (x <= y)` also catches NaN."""
    broken = []
    if not report.error <= gates.tol:
        broken.append(f"relative error {report.error:.3g} exceeds the tolerance {gates.tol:g}")
    if not report.tile_ratio <= gates.kappa:
        broken.append(f"worst tile is {report.tile_ratio:.3g} tolerances off, allowed are {gates.kappa:g}")
    for region in regions:
        error = report.regions.get(region.name, 0.0)
        if not error <= region.tol:
            broken.append(f"region {region.name}: relative error {error:.3g} exceeds {region.tol:g}")
    return broken


def _ratio(d: float, r: float) -> float:
    """d / r; a zero-norm reference needs equality."""
    if r == 0.0:
        return 0.0 if d == 0.0 else math.inf
    return d / r


def _tile_sums(squares: torch.Tensor) -> torch.Tensor:
    """Sums over consecutive tiles; the last tile may be short."""
    missing = -squares.numel() % TILE
    if missing:
        squares = torch.nn.functional.pad(squares, (0, missing))
    return squares.view(-1, TILE).sum(1)


def _same_non_finite(r: torch.Tensor, o: torch.Tensor, finite: torch.Tensor) -> bool:
    if bool(finite.all()):
        return bool(torch.isfinite(o).all())
    return not bool(_non_finite_mismatch(r, o).any())


def _non_finite_mismatch(r: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """Where non-finite entries differ in position, kind or sign."""
    agree = torch.where(torch.isfinite(r), torch.isfinite(o), (r == o) | (torch.isnan(r) & torch.isnan(o)))
    return ~agree


def _notable(r: torch.Tensor, o: torch.Tensor, tol: float) -> torch.Tensor:
    """Entries off by more than the tolerance relative to themselves plus the output's scale."""
    size = torch.nan_to_num(r.float().abs(), 0.0, 0.0, 0.0)
    largest = size.max().clamp(min=torch.finfo(torch.float32).tiny)  # divided out: squares would overflow
    scale = (size / largest).square().mean().sqrt() * largest
    return (o.float() - r.float()).abs() > tol * (r.float().abs() + scale)


def _differences(r: torch.Tensor, o: torch.Tensor, wrong: torch.Tensor) -> list[dict[str, Any]]:
    """The first `SHOWN` wrong coordinates of a flat mask, with both values."""
    found = []
    for flat in wrong.nonzero()[:SHOWN, 0].tolist():
        index, rest = [], flat
        for size in reversed(r.shape):
            index.append(rest % size)
            rest //= size
        position = tuple(reversed(index))
        found.append({"index": list(position), "expected": _plain(r[position]), "actual": _plain(o[position])})
    return found


def _plain(value: torch.Tensor) -> float | int | str:
    """A scalar for JSON, which has no NaN."""
    number = value.item()
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number if isinstance(number, (int, float)) else int(number)


def build_regions(declared: Mapping[str, tuple[str, torch.Tensor, float]], names: Sequence[str]) -> list[Region]:
    """A spec's `regions(*args)` result as `Region` records.

    Raises:
        ValueError: a region names an output that does not exist.
    """
    regions = []
    for name, (output, mask, tol) in declared.items():
        if output not in names:
            raise ValueError(f"region {name!r} names the output {output!r}; there are {', '.join(names)}")
        regions.append(Region(name, list(names).index(output), mask, float(tol)))
    return regions
