"""`taskfactory build`: check specs and write their bundles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from taskfactory.bundle import BASE_IMAGE, Built, build, stale, unchanged
from taskfactory.errors import SpecError, UsageError
from taskfactory.findings import color_wanted, failed, format_text
from taskfactory.paths import spec_files


@click.command("build", epilog="Example: taskfactory build specs/based_forward.py --out build")
@click.argument("specs", nargs=-1, metavar="[TASK|PATH]...")
@click.option("--out", default="build", show_default=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder that holds one bundle a task.")  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing; say which bundles are stale and exit with 2 if any is.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of the bundles.")
@click.option("--image", metavar="REF", help="Base image of both containers, best as NAME@sha256:DIGEST.")
def command(specs: tuple[str, ...], out: Path, check: bool, as_json: bool, image: str | None) -> None:
    """Check specs and build their bundles.

    Without arguments every spec of ./specs is built. A bundle that is up to date is left alone; a spec with
    errors is reported, its old bundle stays, and the others are built all the same.
    """
    if image is not None and "@sha256:" not in image:
        click.echo(f"warning: {image} is not pinned by digest, so the bundles are not reproducible", err=True)
    paths = spec_files(specs)
    if check:
        sys.exit(_check(paths, out, image or BASE_IMAGE, as_json))
    sys.exit(_build(paths, out, image or BASE_IMAGE, as_json))


def _build(paths: list[Path], out: Path, image: str, as_json: bool) -> int:
    """Build every spec and print what became of it; returns the exit status."""
    built: list[Built] = []
    bad = warnings = 0
    seen: dict[str, Path] = {}
    for path in _with_progress(paths):
        try:
            bundle, count = _build_one(path, out, image, seen)
        except SpecError as error:
            click.echo(format_text(error.findings, color=color_wanted(sys.stderr)), err=True)
            bad += 1
            continue
        built.append(bundle)
        warnings += count
    if as_json:
        rows = [{"task": b.task, "path": str(b.path), "written": b.written, "oracle": b.oracle} for b in built]
        click.echo(json.dumps(rows, indent=2))
    else:
        for bundle in built:
            click.echo(f"{bundle.path}  {'built' if bundle.written else 'up to date'}")
    without = [bundle.task for bundle in built if not bundle.oracle]
    if without:
        click.echo(f"warning: no solution found, so no solution/ in the bundle of {_some(without)}", err=True)
    if warnings:
        click.echo(f"warning: {warnings} finding(s) below an error; `taskfactory validate` lists them", err=True)
    if bad:
        click.echo(f"taskfactory: {bad} of {len(paths)} specs have errors; their bundles are as they were", err=True)
    return 2 if bad else 0


def _build_one(path: Path, out: Path, image: str, seen: dict[str, Path]) -> tuple[Built, int]:
    """The bundle of one spec file, written only if it changed, and the number of warnings its checks gave."""
    bundle = unchanged(path, out, image=image)
    if bundle is not None:
        _claim(bundle.task, path, seen)
        return bundle, 0
    from taskfactory.checks import check_spec
    from taskfactory.load import load_spec

    file = load_spec(path)
    findings = check_spec(file)
    if failed(findings):
        raise SpecError([finding for finding in findings if finding.severity == "error"])
    _claim(file.spec.name, path, seen)
    return build(file, out, image=image), len(findings)


def _claim(task: str, path: Path, seen: dict[str, Path]) -> None:
    """Refuse to build two specs of one name into one folder."""
    other = seen.setdefault(task, path)
    if other != path:
        raise UsageError(f"{other} and {path} are both named {task!r}; their bundles would overwrite each other")


def _check(paths: list[Path], out: Path, image: str, as_json: bool) -> int:
    """Say which bundles are stale and why; returns the exit status, 2 if any is."""
    from taskfactory.load import load_spec

    rows = []
    for path in paths:
        spec = load_spec(path).spec
        reason = stale(path, spec.name, spec.module, out, image=image)
        rows.append({"task": spec.name, "path": str(out / spec.name), "stale": reason})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        for row in rows:
            click.echo(f"{row['path']}  {'stale: ' + row['stale'] if row['stale'] else 'up to date'}")
    return 2 if any(row["stale"] for row in rows) else 0


def _with_progress(paths: list[Path]) -> Iterable[Path]:
    """The paths, with a bar on stderr while they are worked through if it is a terminal."""
    if len(paths) < 2 or not sys.stderr.isatty():
        return paths
    return _bar(paths)


def _bar(paths: list[Path]) -> Iterator[Path]:
    from rich.console import Console
    from rich.progress import track

    yield from track(paths, description="building", console=Console(stderr=True), transient=True)


def _some(names: list[str], limit: int = 5) -> str:
    """Names joined by commas, the first few of many."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
