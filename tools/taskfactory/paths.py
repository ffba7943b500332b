"""Where specs, templates and solutions lie: in a checkout, or inside an installed wheel."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from taskfactory.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """The folder that holds specs/, templates/ and solutions/: the checkout, else the wheel's own copy."""
    checkout = _PACKAGE.parents[1]
    if (checkout / "templates").is_dir() and (checkout / "tools" / "taskfactory") == _PACKAGE:
        return checkout
    return _PACKAGE / "_data"


def specs_dir() -> Path:
    """Our own specs, one file a task."""
    return root() / "specs"


def templates_dir() -> Path:
    """The Jinja templates, one folder a kind of output."""
    return root() / "templates"


def solutions_dir() -> Path:
    """Our own solutions, one module a task."""
    return root() / "solutions"


def exploits_dir() -> Path:
    """The corpus of attacks on the grader, one file an attack, and the honest controls in `controls/`."""
    checkout = root() / "tests" / "exploits"
    return checkout if checkout.is_dir() else root() / "exploits"


def spec_filename(task: str) -> str:
    """The file name of a task's spec: `based-forward` lies in `based_forward.py`."""
    return task.replace("-", "_") + ".py"


def resolve_spec(name_or_path: str | os.PathLike[str]) -> Path:
    """The spec file meant by a path or by a task name.

    A task name is looked up in `./specs` and then among our own specs.

    Raises:
        UsageError: nothing of that name exists; the message lists close matches.
    """
    text = os.fspath(name_or_path)
    path = Path(text)
    if _is_name(text):
        for folder in (Path("specs"), specs_dir()):
            candidate = folder / spec_filename(text)
            if candidate.is_file():
                return candidate
        if not path.exists():
            raise UsageError(f"no task named {text!r}{_suggestion(text)}")
    if not path.exists():
        raise UsageError(f"{text}: no such file")
    if path.is_dir():
        raise UsageError(f"{text}: is a directory, not a spec file")
    return path


def spec_files(arguments: Sequence[str], *, ours: bool = False) -> list[Path]:
    """The spec files meant by the arguments of a command: files, folders and task names, in order, once each.

    Of a folder, those `*.py` files are taken which mention TaskSpec. Without arguments `./specs` is taken, or, with
    `ours` and where there is no such folder, the specs that come with the package.

    Raises:
        UsageError: an argument means nothing, or there is no spec at all.
    """
    found: dict[Path, None] = {}
    default = str(specs_dir()) if ours and not Path("specs").is_dir() else "specs"
    for argument in arguments or [default]:
        path = Path(argument)
        if path.is_dir():
            inside = specs_in(path)
            if not inside:
                raise UsageError(f"{argument}: holds no spec (a *.py file that binds SPEC = TaskSpec(...))")
            found.update(dict.fromkeys(inside))
        elif not arguments:
            raise UsageError("there is no ./specs folder here; name a spec file, a folder or a task")
        else:
            found[resolve_spec(argument)] = None
    return list(found)


def specs_in(folder: Path) -> list[Path]:
    """The `*.py` files of a folder that mention TaskSpec, sorted by name; sub-folders are not searched."""
    return [path for path in sorted(folder.glob("*.py")) if path.is_file() and _mentions_taskspec(path)]


def task_names() -> list[str]:
    """The names `resolve_spec` would find, sorted, judged by file name alone."""
    stems = {path.stem for folder in (Path("specs"), specs_dir()) if folder.is_dir() for path in folder.glob("*.py")}
    return sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_"))


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", text) is not None


def _suggestion(text: str) -> str:
    names = task_names()
    close = difflib.get_close_matches(text.replace("_", "-"), names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known tasks: {', '.join(names)}" if names else ""


def _mentions_taskspec(path: Path) -> bool:
    try:
        return b"TaskSpec" in path.read_bytes()
    except OSError:
        # Kept, so that loading it reports why it cannot be read.
        return True
