"""Peers of the cache gate: torch.compile of the reference, and as a yardstick a copy of the same traffic."""

from __future__ import annotations

import torch

from peers.contest import Call, Contestant, Problem
from peers.inductor import compiled
from taskfactory.grader.memory import copy_bits


def _reference(problem: Problem) -> Call:
    function = compiled(problem.task.space[problem.task.fields["func"]])
    return lambda: function(*problem.args)


def _copy(problem: Problem) -> Call:
    """Two of the inputs' sizes read, two written, new outputs each time; by a compute kernel, as the ceiling is."""
    source = torch.cat([stream.flatten() for stream in problem.args[:2]])

    def call() -> torch.Tensor:
        target = torch.empty_like(source)
        copy_bits(target, source)
        return target

    return call


def _driver_copy(problem: Problem) -> Call:
    source = torch.cat([stream.flatten() for stream in problem.args[:2]])
    return source.clone


CONTESTANTS = (
    Contestant("torch.compile", "peer", "the reference under torch.compile, static shapes", _reference),
    Contestant("copy, kernel", "yardstick", "a copy that reads and writes as many bytes, by a kernel", _copy),
    Contestant("copy, driver", "yardstick", "the same copy by the driver", _driver_copy),
)
