"""Specs made of other benchmarks' problems: KernelBench, GPU MODE and flashinfer-trace.

Nothing of a problem is executed. What its format does not say (tolerance, work, prose, often shapes) is filled in with
a guess, listed in the notes and at the head of the spec, which validates and builds all the same. A file that one of
our exporters wrote gives back every field it carries.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from taskfactory.importers.draft import Draft, Imported, render

SOURCES = {
    "flashinfer-trace": "taskfactory.importers.flashinfer",
    "gpu-mode": "taskfactory.importers.gpu_mode",
    "kernelbench": "taskfactory.importers.kernelbench",
}
"""Source -> module with `read(problem: Path) -> Draft`."""


def import_problem(problem: Path, source: str, licence: str | None = None) -> Imported:
    """The spec of a problem in the format of `source`, one of SOURCES.

    Args:
        problem: KernelBench: a file. GPU MODE: a folder with task.yml. flashinfer-trace: a definition's JSON.
        source: the format.
        licence: SPDX identifier of the problem's licence, if its files do not say.

    Raises:
        UsageError: not a problem of that format, or one that a spec cannot hold.
    """
    read: Callable[[Path], Draft] = importlib.import_module(SOURCES[source]).read
    return render(read(problem), source, licence)
