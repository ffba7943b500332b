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

from taskfactory.cli.turn import NO_WAIT, turn
from taskfactory.errors import InfrastructureError, SpecError, TaskfactoryError, UsageError
from taskfactory.findings import color_wanted, failed
from taskfactory.paths import spec_files

_EPILOG = """\b
Examples:
  taskfactory calibrate based-forward          write specs/certificates/based-forward.cpu.json
  taskfactory calibrate specs/ --jobs 2
  taskfactory calibrate specs/ --verify        measure one seed again and compare
  taskfactory calibrate specs/ --device cuda --jobs 3 --grading results/
  taskfactory calibrate based-forward --dry-run --svg .
"""


_TOLD_S = 10.0
"""Time between two lines of progress where there is no terminal."""


@click.command("calibrate", epilog=_EPILOG)
@click.argument("specs", nargs=-1, metavar="[PATH|TASK]...")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run.")
@click.option("--seed", "seeds", type=int, multiple=True, help="A seed of the inputs; may be given several times.")
@click.option("--verify", is_flag=True, help="Write nothing: measure one seed on the CPU again and compare.")
@click.option("--dry-run", is_flag=True, help="Measure and judge, but write no certificate.")
@click.option("--svg", type=click.Path(file_okay=False, path_type=Path), help="Folder for a picture of each task.")
@click.option(
    "--grading",
    type=click.Path(exists=True, path_type=Path),
    help="Result of `taskfactory grade --result` on a GPU, which says what the clock leaves open at each graded shape; "
    "or a folder of them, of which the newest that passed is taken for each task.",
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(0),
    default=45.0,
    show_default=True,
    help="Seconds for measure and graded shapes of one spec on a GPU; what is left then is named as a gap.",
)
@click.option(
    "--memory-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the GPU's memory for calibration; with --jobs it is divided among the specs.",
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Specs measured at the same time.")
@NO_WAIT
@click.option("--has-turn", is_flag=True, hidden=True, help="Whoever started this holds the GPU.")
def command(
    specs: tuple[str, ...],
    device: str,
    seeds: tuple[int, ...],
    verify: bool,
    dry_run: bool,
    svg: Path | None,
    grading: Path | None,
    budget_s: float,
    memory_share: float,
    jobs: int,
    no_wait: bool,
    has_turn: bool,
) -> None:
    """Measure whether the gates of a task let honest work through and stop everything else.

    Alternates, ablations, trivial answers, roundings and mutants of the reference are run on the correct shapes and
    cases, in a child that can be killed; on a GPU also on measure and graded shapes, where the task's solution is timed
    too. Work formulas are held against what a call takes. The figures go into certificates/<task>.<device>.json beside
    the spec, as soon as a spec is done. This executes the spec's sources.

    Exits with 0 if every task is sound (or every certificate agrees), else with 2; with 3 if one could not be measured.
    """
    paths = spec_files(specs)
    with turn("cpu" if has_turn or verify else device, no_wait):
        status = _all(paths, device, seeds, verify, dry_run, svg, grading, budget_s, memory_share, jobs)
    sys.exit(status)


def _all(
    paths: Sequence[Path],
    device: str,
    seeds: Sequence[int],
    verify: bool,
    dry_run: bool,
    svg: Path | None,
    grading: Path | None,
    budget_s: float,
    memory_share: float,
    jobs: int,
) -> int:
    """One spec after the other, or several at once; the exit status."""
    if jobs > 1 and len(paths) > 1:
        options = [f"--device={device}", *(f"--seed={seed}" for seed in seeds), *(["--verify"] if verify else [])]
        options += [*(["--dry-run"] if dry_run else []), *([f"--svg={svg}"] if svg else [])]
        options += [f"--memory-share={memory_share / min(jobs, len(paths))}", f"--budget={budget_s}"]
        options += [f"--grading={grading}"] if grading else []
        return _in_parallel(_longest_first(paths, device), jobs, [*options, "--has-turn"])
    status = 0
    for path in paths:
        try:
            if verify:
                good = _verify(path, seeds)
            else:
                good = _calibrate(path, device, seeds, dry_run, svg, (budget_s, memory_share), grading)
            status = max(status, 0 if good else 2)
        except (SpecError, InfrastructureError) as error:  # the other specs are measured all the same
            if len(paths) == 1:
                raise
            _clear()
            from taskfactory.cli import report_error

            report_error(error)
            status = max(status, error.exit_code)
    return status


def _longest_first(paths: Sequence[Path], device: str) -> list[Path]:
    """Specs in an order that keeps all jobs busy to the end: by the seconds of their last certificates."""
    from taskfactory.calibrate.certificate import certificate_path, read_certificate
    from taskfactory.load import load_spec

    def seconds(path: Path) -> float:
        for kind in (device, "cpu"):
            try:
                return float(read_certificate(certificate_path(load_spec(path), kind)).data["seconds"]["all"])
            except (TaskfactoryError, OSError, KeyError):
                continue
        return float("inf")

    return sorted(paths, key=seconds, reverse=True)


def _calibrate(
    path: Path,
    device: str,
    seeds: Sequence[int],
    dry_run: bool,
    svg: Path | None,
    limits: tuple[float, float],
    grading: Path | None,
) -> bool:
    """Measure one spec, show what was found, write it; whether the task is sound.

    `limits` are the seconds for measure and graded shapes, three tenths of them for the stopwatch, and the share of the
    GPU's memory.
    """
    from taskfactory.calibrate.certificate import certificate_path, write_certificate
    from taskfactory.calibrate.certify import certify
    from taskfactory.calibrate.gradings import clock_of
    from taskfactory.calibrate.plot import draw_svg, show
    from taskfactory.calibrate.run import SEEDS, Budget

    file = _checked(path)
    clock = None if grading is None else clock_of(grading, file)
    started = time.monotonic()
    budget_s, memory_share = limits
    budget = Budget(0.7 * budget_s, 0.3 * budget_s, memory_share) if device == "cuda" else None
    data = certify(file, device=device, seeds=seeds or SEEDS, budget=budget, clock=clock, progress=_progress(device))
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
    """Compare the CPU's certificate of one spec with one seed measured now; whether they agree.

    Inputs are drawn otherwise on a GPU, so a certificate from there is held against itself and the formulas only.
    """
    from taskfactory.calibrate.certificate import certificate_path, read_certificate
    from taskfactory.calibrate.certify import consistent, verify

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
    wrong = verify(file, certificate, seed, _progress("cpu"))
    if certificate_path(file, "cuda").is_file():
        wrong += consistent(file, read_certificate(certificate_path(file, "cuda")))
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


def _progress(device: str) -> Any:
    """Rewrites one line on stderr if that is a terminal; else, on a GPU, writes one every now and then."""
    if sys.stderr.isatty():
        return lambda text: click.echo(f"\r\x1b[2K{text[:100]}", nl=False, err=True)
    if device == "cpu":
        return None
    started = time.monotonic()
    told = started

    def tell(text: str) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= _TOLD_S:
            told = now
            click.echo(f"{now - started:5.0f} s  {text}", err=True)

    return tell


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[2K", nl=False, err=True)
