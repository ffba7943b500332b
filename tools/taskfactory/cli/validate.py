"""`taskfactory validate`: load, check, print."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from taskfactory.errors import SpecError
from taskfactory.findings import (
    Finding,
    color_wanted,
    failed,
    format_github,
    format_json,
    format_text,
    in_file_order,
    summary,
)
from taskfactory.paths import spec_files

_EPILOG = """\b
Examples:
  taskfactory validate                       every spec in ./specs
  taskfactory validate specs/based_forward.py --strict
  taskfactory validate specs/ --format github
  taskfactory validate based-forward --run   also run the sources, in a child that can be killed
  taskfactory validate specs/ --release      every task must hold a complete and sound certificate
  taskfactory validate specs/ --release --device cpu --device cuda   ... one from each device
"""


@click.command("validate", epilog=_EPILOG)
@click.argument("specs", nargs=-1, metavar="[PATH|TASK]...")
@click.option("--run", "run_dynamic", is_flag=True, help="Also run the embedded sources (needs torch).")
@click.option("--release", is_flag=True, help="Treat a missing, stale, incomplete or unsound certificate as an error.")
@click.option(
    "--device",
    "devices",
    type=click.Choice(["cpu", "cuda"]),
    multiple=True,
    default=["cpu"],
    show_default=True,
    help="With --release: a device whose certificate must be there; may be given several times.",
)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "github"]), default="text", help="How findings are printed."
)
def command(
    specs: tuple[str, ...],
    run_dynamic: bool,
    release: bool,
    devices: tuple[str, ...],
    strict: bool,
    as_json: bool,
    form: str,
) -> None:
    """Check specs and report everything that is wrong with them.

    Takes files, folders and task names; without any, the specs of ./specs. Reading a spec executes nothing of it, so
    a stranger's file can be checked safely; only --run executes the embedded sources. Each finding has a code, which
    docs/checks.md explains.

    Exits with 0 if there is no error, and with 2 if there is one.
    """
    findings, loaded, count = check_files(specs, run_dynamic=run_dynamic, release=release, devices=devices)
    # Calibration takes minutes and has a switch of its own, so --strict asks for everything else.
    counted = strict and failed((f for f in findings if not f.code.startswith("TF7")), strict=True)
    bad = counted or failed(findings)
    if as_json or form == "json":
        click.echo(format_json(findings, schema=1, ok=not bad, strict=strict, specs=loaded))
    elif form == "github":
        if findings:
            click.echo(format_github(findings))
        click.echo(summary(findings, specs=count, strict=counted), err=True)
    else:
        color = color_wanted(sys.stdout)
        if findings:
            click.echo(format_text(findings, color=color) + "\n", color=color)
        click.echo(summary(findings, specs=count, color=color_wanted(sys.stderr), strict=counted), err=True)
    sys.exit(2 if bad else 0)


def check_files(
    arguments: Sequence[str], *, run_dynamic: bool = False, release: bool = False, devices: Sequence[str] = ("cpu",)
) -> tuple[list[Finding], list[dict[str, Any]], int]:
    """All findings about the specs meant by the arguments; the specs that loaded, with path and name; and how many
    files were looked at. With `run_dynamic` the loaded ones have the figures of running them, too."""
    from taskfactory.checks import check_many
    from taskfactory.checks.certificates import check_certificates
    from taskfactory.load import SpecFile, load_spec

    files: list[SpecFile] = []
    findings: list[Finding] = []
    figures: dict[str, dict[str, Any]] = {}
    paths = spec_files(arguments)
    for path in paths:
        try:
            files.append(load_spec(path))
        except SpecError as error:
            findings.extend(error.findings)
    findings += check_many(files)
    for file in files:
        findings += check_certificates(file, release=release, devices=devices)
    if run_dynamic:
        # By name, since it brings torch along and is wanted only here.
        dynamic = importlib.import_module("taskfactory.checks.dynamic")
        sound = [file for file in files if not _broken(file, findings)]
        for file, outcome in zip(sound, dynamic.run_all(sound), strict=True):
            findings += outcome.findings
            figures[str(file.path)] = outcome.figures
    loaded: list[dict[str, Any]] = [{"path": str(file.path), "name": file.spec.name} for file in files]
    for entry in loaded:
        if entry["path"] in figures:
            entry["figures"] = figures[entry["path"]]
    return in_file_order(findings), loaded, len(paths)


def _broken(file: object, findings: Sequence[Finding]) -> bool:
    """Running a spec that static checks reject would only say the same less clearly."""
    path = getattr(file, "path", None)
    return any(finding.path == path and finding.severity == "error" for finding in findings)
