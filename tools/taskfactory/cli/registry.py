"""`taskfactory registry`: bundles as a Harbor dataset."""

from __future__ import annotations

from pathlib import Path

import click

from taskfactory import __version__
from taskfactory.errors import UsageError
from taskfactory.registry import DATASET, dataset_toml, entries, registry_json

_DESCRIPTION = "GPU kernels to be written against a PyTorch reference, graded by speed."


@click.command("registry", epilog="Example: taskfactory registry build")
@click.argument("bundles", default="build", type=click.Path(file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where to write [default: BUNDLES].")
@click.option("--name", default=DATASET, show_default=True, help="The dataset's name, as org/name.")
@click.option("--version", default=__version__, show_default=True, help="The dataset's version.")
@click.option("--git-url", help="Repository in which the bundles can be found; without it the paths are local.")
@click.option("--git-commit", help="Its commit, in full.")
def command(
    bundles: Path, out: Path | None, name: str, version: str, git_url: str | None, git_commit: str | None
) -> None:
    """Write dataset.toml and registry.json for the bundles of a folder.

    dataset.toml pins each task by Harbor's own content hash. The paths of registry.json are relative to the folder it
    is written to if there is no repository, and to the working directory if there is one.
    """
    if bool(git_url) != bool(git_commit):
        raise UsageError("--git-url and --git-commit belong together")
    found = entries(bundles)
    folder = out or bundles
    folder.mkdir(parents=True, exist_ok=True)
    common = {"name": name, "version": version, "description": _DESCRIPTION}
    (folder / "dataset.toml").write_text(dataset_toml(found, **common), encoding="utf-8")
    root = Path.cwd() if git_url else folder
    text = registry_json(found, **common, root=root, git_url=git_url, git_commit=git_commit)
    (folder / "registry.json").write_text(text, encoding="utf-8")
    for entry in found:
        click.echo(f"{entry.name}  {entry.version}  {entry.digest}")
