"""`taskfactory calibrate`: measure, judge, write certificates."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from taskfactory.errors import SpecError, UsageError
from taskfactory.findings import color_wanted, failed
from taskfactory.paths import spec_files

_EPILOG = """\b
Examples:
  taskfactory calibrate based-forward          write specs/certificates/based-forward.cpu.json
  taskfactory calibrate specs/ --jobs 2
  taskfactory calibrate specs/ --verify        measure one seed again and compare
  taskfactory calibrate based-forward --dry-run --svg .
"""


@click.command("calibrate", epilog=_EPILOG)
@click.argument("specs", nargs=-1, metavar="[PATH|TASK]...")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run.")
@click.option("--seed", "seeds", type=int, multiple=True, help="A seed of the inputs; may be given several times.")
@click.option("--verify", is_flag=True, help="Write nothing: measure one seed on the CPU again and compare.")
@click.option("--dry-run", is_flag=True, help="Measure and judge, but write no certificate.")
@click.option("--svg", type=click.Path(file_okay=False, path_type=Path), help="Folder for a picture of each task.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Specs measured at the same time.")
def command(
    specs: tuple[str, ...],
    device: str,
    seeds: tuple[int, ...],
    verify: bool,
    dry_run: bool,
    svg: Path | None,
    jobs: int,
) -> None:
    """Measure whether the gates of a task let honest work through and stop everything else.

    Alternates, ablations, trivial answers, roundings and mutants of the reference are run on the correct shapes and
    cases, in a child that can be killed; on a GPU also on measure and graded shapes. The figures go into
    certificates/<task>.<device>.json beside the spec. This executes the spec's sources.

    Exits with 0 if every task is sound (or every certificate agrees), else with 2.
    """
    paths = spec_files(specs)
    if jobs > 1 and len(paths) > 1:
        options = [f"--device={device}", *(f"--seed={seed}" for seed in seeds), *(["--verify"] if verify else [])]
        options += [*(["--dry-run"] if dry_run else []), *([f"--svg={svg}"] if svg else [])]
        sys.exit(_in_parallel(paths, jobs, options))
    bad = 0
    for path in paths:
        bad += not (_verify(path, seeds) if verify else _calibrate(path, device, seeds, dry_run, svg))
    sys.exit(2 if bad else 0)


def _calibrate(path: Path, device: str, seeds: Sequence[int], dry_run: bool, svg: Path | None) -> bool:
    """Measure one spec, show what was found, write it; whether the task is sound."""
    from taskfactory.calibrate.certificate import certificate_path, write_certificate
    from taskfactory.calibrate.certify import certify
    from taskfactory.calibrate.plot import draw_svg, show
    from taskfactory.calibrate.run import SEEDS

    file = _checked(path)
    started = time.monotonic()
    data = certify(file, device=device, seeds=seeds or SEEDS, progress=_progress())
    _clear()
    click.echo(show(data, color=color_wanted(sys.stdout)), color=True)
    click.echo(f"{file.spec.name}: {time.monotonic() - started:.0f} s", err=True)
    if svg is not None:
        svg.mkdir(parents=True, exist_ok=True)
        (svg / f"{file.spec.name}.{device}.svg").write_text(draw_svg(data), "utf-8")
    if not dry_run:
        target = certificate_path(file, device)
        write_certificate(target, data)
        click.echo(os.path.relpath(target))
    return bool(data["verdict"]["sound"])


def _verify(path: Path, seeds: Sequence[int]) -> bool:
    """Compare the certificates of one spec with one seed measured now; whether they agree."""
    from taskfactory.calibrate.certificate import certificate_path, read_certificate
    from taskfactory.calibrate.certify import verify

    file = _checked(path)
    target = certificate_path(file, "cpu")
    if not target.is_file():
        raise UsageError(f"{target}: no such certificate; `taskfactory calibrate {file.spec.name}` writes it")
    certificate = read_certificate(target)
    if certificate.stale(file.spec):
        click.echo(f"{file.spec.name}: the certificate is stale: the spec has changed since", err=True)
        return False
    known = certificate.data["seeds"]
    # Any of its seeds, so that no figure of the file can be edited with impunity.
    seed = seeds[0] if seeds else random.SystemRandom().choice(known)
    if seed not in known:
        raise UsageError(f"{target}: has no figures for the seed {seed}, only for {', '.join(map(str, known))}")
    wrong = verify(file, certificate, seed, _progress())
    _clear()
    for sentence in wrong:
        click.echo(f"{file.spec.name}: {sentence}", err=True)
    click.echo(f"{file.spec.name}: {'does not agree' if wrong else 'agrees'} (seed {seed})")
    return not wrong


def _checked(path: Path) -> Any:
    """A spec whose static checks find no error."""
    from taskfactory.checks import check_spec
    from taskfactory.load import load_spec

    file = load_spec(path)
    findings = check_spec(file)
    if failed(findings):
        raise SpecError([finding for finding in findings if finding.severity == "error"])
    return file


def _in_parallel(paths: Sequence[Path], jobs: int, options: Sequence[str]) -> int:
    """One process a spec, since each ends all processes below it when it is done."""
    waiting, status = list(paths), 0
    running: list[subprocess.Popen[str]] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            argv = [sys.executable, "-m", "taskfactory", "calibrate", *options, "--", str(waiting.pop(0))]
            running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        for process in list(running):
            try:
                out, _ = process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            running.remove(process)
            click.echo(out, nl=False)
            status = max(status, process.returncode)
    return status


def _progress() -> Any:
    """Rewrites one line on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        return None
    return lambda text: click.echo(f"\r\x1b[2K{text[:100]}", nl=False, err=True)


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[2K", nl=False, err=True)
