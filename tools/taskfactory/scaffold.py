"""Write a new spec from templates/new/: complete, valid at once, and explained by its comments."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

from taskfactory.checks.names import TAKEN_MODULES, kebab_case
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.paths import spec_filename, templates_dir


def new_spec(name: str, folder: Path) -> Path:
    """Write `<folder>/<name>.py` for the task `name` and return its path.

    Raises:
        UsageError: the name is not kebab-case, would hide a module, or the file exists already.
        InfrastructureError: the file cannot be written.
    """
    if not kebab_case(name):
        raise UsageError(f"{name!r} is not kebab-case: lower-case words joined by hyphens, such as fused-rms-norm")
    stem = name.replace("-", "_")
    if stem in sys.stdlib_module_names or stem in TAKEN_MODULES or keyword.iskeyword(stem):
        raise UsageError(f"{name!r} makes a module {stem}.py, which would hide another one; use a longer name")
    path = folder / spec_filename(name)
    text = render_new(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already and is left alone") from None
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def render_new(name: str) -> str:
    """The text of a new spec. The template's own marks are `<<` and `>>`, since a spec holds braces for prose."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir() / "new"),
        undefined=jinja2.StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template("spec.py.jinja").render(name=name, stem=name.replace("-", "_"))
