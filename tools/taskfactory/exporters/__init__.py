"""One task in the formats of other benchmarks, as far as they go, with a list of what each cannot hold.

The list is printed and kept in the exported files' metadata. What a format does hold comes back unchanged through
`taskfactory.importers`. Exporting to flashinfer-trace runs the spec's input generator and reference on the CPU; the
others run nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from taskfactory.errors import InfrastructureError
from taskfactory.load import SpecFile


@dataclass(frozen=True)
class Export:
    """Files by path relative to the output folder, and what was lost, one sentence each."""

    files: dict[str, bytes]
    losses: tuple[str, ...]


TARGETS = {
    "flashinfer-trace": "taskfactory.exporters.flashinfer",
    "gpu-mode": "taskfactory.exporters.gpu_mode",
    "kernelbench": "taskfactory.exporters.kernelbench",
}
"""Target -> module with `export(file: SpecFile) -> Export`."""


def export(file: SpecFile, target: str) -> Export:
    """The task in the format of `target`, one of TARGETS.

    Raises:
        UsageError: the format cannot hold the task at all.
    """
    make: Callable[[SpecFile], Export] = importlib.import_module(TARGETS[target]).export
    return make(file)


def write(exported: Export, out: Path) -> list[Path]:
    """Write the files below `out`, replacing what is there.

    Raises:
        InfrastructureError: the disk would not take them.
    """
    written = []
    try:
        for name, data in exported.files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            written.append(path)
    except OSError as error:
        raise InfrastructureError(f"cannot write below {out}: {error.strerror or error}") from error
    return written
