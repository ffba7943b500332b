"""Waiting for one's turn on a GPU; for every command that times or fills one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import click

NO_WAIT = click.option("--no-wait", is_flag=True, help="Fail at once if another grading is using the GPU.")


def turn(device: str, no_wait: bool) -> AbstractContextManager[None]:
    """The first GPU, held until the block ends, where `device` means one; the CPU is nobody's alone."""
    from taskfactory.fleet.leases import first_gpu
    from taskfactory.grader.supervisor import resolve_device

    if resolve_device(device) != "cuda":
        return nullcontext()
    return first_gpu(not no_wait, lambda text: click.echo(text, err=True))
