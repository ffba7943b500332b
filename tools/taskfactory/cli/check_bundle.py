"""`taskfactory check-bundle`: try bundles out with Harbor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from taskfactory.check_bundle import ENVIRONMENT, Gate, Setup, check_bundle, harbor_program


@click.command("check-bundle", epilog="Example: taskfactory check-bundle build/based-forward")
@click.argument("bundles", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--attacks", is_flag=True, help="Also try a slow submission and three that cheat.")
@click.option("--env", "environment", default=ENVIRONMENT, show_default=True, help="Harbor environment to run in.")
@click.option("--python", default=sys.executable, show_default=True,
              help="Interpreter inside the bubblewrap environment; it must have torch.")  # fmt: skip
@click.option("--harbor", help="The harbor command [default: beside this Python, or on the path].")
@click.option("--jobs", type=click.Path(file_okay=False, path_type=Path), help="Keep Harbor's records here.")
@click.option("--rehearse/--timed", default=None,
              help="One small shape on the CPU, or all on the GPU [default: by whether there is one].")  # fmt: skip
def command(
    bundles: tuple[Path, ...], attacks: bool, environment: str, python: str, harbor: str | None, jobs: Path | None,
    rehearse: bool | None,
) -> None:  # fmt: skip
    """Lint and parse bundles with Harbor, and run oracle and no-op through it.

    Exits with 0 if every gate passed, 1 if one did not, 3 where Harbor cannot be run.
    """
    if rehearse is None:
        rehearse = not os.path.exists("/dev/nvidiactl")
    setup = Setup(
        harbor_program(harbor), environment, python, "--rehearse" if rehearse else "", 0 if rehearse else None, jobs
    )
    failed = 0
    for bundle in bundles:
        click.echo(bundle.name + ("  (rehearsal on the CPU)" if rehearse else ""))
        gates = check_bundle(bundle, setup, attacks=attacks, report=_show)
        failed += sum(not gate.passed for gate in gates)
    if failed:
        click.echo(f"taskfactory: {failed} gate(s) failed", err=True)
    sys.exit(1 if failed else 0)


def _show(gate: Gate) -> None:
    click.echo(f"  {'ok  ' if gate.passed else 'FAIL'}  {gate.name:<13} {gate.seen}")
