"""Peers of Based: the two kernels of flash-linear-attention, with their normaliser."""

from __future__ import annotations

from peers.contest import Call, Contestant, Problem, Unavailable


def _fla(name: str, problem: Problem) -> Call:
    """fla takes our layout (B, T, H, K) and transposes by itself, inside the timed call."""
    try:
        from fla.ops import based
    except ImportError as error:
        raise Unavailable(f"flash-linear-attention does not import ({error}); see bench/peers/install.py") from None
    function = getattr(based, name)
    return lambda: function(*problem.args, use_norm=True)


def _chunks(problem: Problem) -> Call:
    return _fla("fused_chunk_based", problem)


def _pairs(problem: Problem) -> Call:
    return _fla("parallel_based", problem)


CONTESTANTS = (
    Contestant("fla fused_chunk_based", "peer", "linear form, chunks of 16", _chunks),
    Contestant("fla parallel_based", "peer", "quadratic form, all pairs", _pairs),
)
