"""`taskfactory doctor`: what this machine can do."""

from __future__ import annotations

import dataclasses
import json
import sys

import click


@click.command("doctor", epilog="Example: taskfactory doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def command(as_json: bool) -> None:
    """Report versions, compilers, device, driver, measured ceilings and the confinement that was observed.

    Exits with 3 if the machine cannot grade at all. A missing GPU is no such thing: the CPU verifies.
    """
    from taskfactory.doctor import confinement, device, software

    lines = software()
    found, figures = device()
    lines += [*found, confinement()]
    broken = [line for line in lines if not line.ok and line.name in ("torch", "system")]
    if as_json:
        click.echo(json.dumps({"facts": [dataclasses.asdict(line) for line in lines], **figures}, indent=2))
    else:
        for line in lines:
            note = "" if line.ok else f"   ({line.advice})"
            click.echo(f"{'ok' if line.ok else '--'}  {line.name:12} {line.value}{note}")
    sys.exit(3 if broken else 0)
