"""Run a spec's sources in a child that can be killed, and turn whatever happens into findings (TF6xx).

This process executes nothing of the spec. One child a spec, one after the other; a child that hangs, crashes, exits,
prints or forks without end is ended, and that is a finding at the line it happened in.

On a Linux with Landlock and seccomp a child on the CPU is shut off like a submission in the grader: it reads Python and
torch, writes in a folder that is removed, and reaches no network. Elsewhere, and on CUDA, it may do what this user may.
What it says is believed only about itself: sources that forge messages can hide their own faults, nothing more.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskfactory.checks.codes import CODES
from taskfactory.checks.record import field_at
from taskfactory.checks.watch import Ending, Limits, run_child
from taskfactory.errors import InfrastructureError
from taskfactory.findings import Finding, in_file_order
from taskfactory.load import SpecFile

SEED = 20_260
_PRINTED_LINES = 3

Progress = Callable[[str], None]


@dataclass
class Outcome:
    """What one child found."""

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """See `taskfactory.checks.experiments.examine`; empty if the child did not come to its end."""


def run_dynamic(files: Sequence[SpecFile], **options: Any) -> list[Finding]:
    """All findings of running the sources of some specs, in file order; `run_all` gives the figures too."""
    return in_file_order(finding for outcome in run_all(files, **options) for finding in outcome.findings)


def run_all(
    files: Sequence[SpecFile],
    *,
    device: str = "cpu",
    seed: int = SEED,
    budget_gb: float = 80.0,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Examine specs, each in a child of its own, and return what was found, in their order.

    Args:
        files: specs without errors in their static checks.
        device: "cpu" or "cuda", where the sources run.
        seed: seed of the inputs; the next one gives the other inputs.
        budget_gb: decimal gigabytes that grading a shape may need.
        limits: what a child may use.
        progress: called with what is being done; by default shown on stderr if that is a terminal.

    Raises:
        InfrastructureError: children cannot be started here, or torch is missing.
    """
    if os.name != "posix":
        raise InfrastructureError("running a spec's sources needs Linux or macOS; the static checks work everywhere")
    if files and importlib.util.find_spec("torch") is None:
        raise InfrastructureError("running a spec's sources needs torch, which is not installed here")
    options = {"device": device, "seed": seed, "budget_gb": budget_gb}
    terminal = _Terminal() if progress is None else None
    show = progress or (terminal.show if terminal else _ignore)
    outcomes = []
    try:
        for number, file in enumerate(files, 1):
            examination = _Examination(file, show, f"[{number}/{len(files)}] {file.spec.name}: ")
            outcomes.append(examination.run(options, limits or Limits()))
    finally:
        if terminal is not None:
            terminal.clear()
    return outcomes


class _Examination:
    """What a child says about one spec, and what its end says."""

    def __init__(self, file: SpecFile, show: Progress, prefix: str) -> None:
        self.file, self.show, self.prefix = file, show, prefix
        self.outcome = Outcome()
        self.doing: tuple[str, str, int] = ("starting", "", 0)

    def run(self, options: Mapping[str, Any], limits: Limits) -> Outcome:
        """Run the child to its end."""
        self.show(self.prefix + "starting")
        file = self.file
        job = {"path": str(file.path), "spec": file.spec.as_dict(), "lines": dict(file.lines), "text": file.text}
        ending = run_child(job | dict(options), limits, self.hear)
        self._conclude(ending, limits)
        return self.outcome

    def hear(self, message: dict[str, Any]) -> bool:
        """Take in a message; whether it was the last one.

        Raises:
            ValueError, TypeError, KeyError: it is none of the messages there are.
        """
        if "finding" in message:
            self.outcome.findings.append(self._finding(message["finding"]))
        elif "doing" in message:
            what, name, line = message["doing"]
            self.doing = (str(what)[:200], str(name)[:200], int(line))
            self.show(self.prefix + self.doing[0])
        elif "broken" in message:
            self._add("TF603", f"examining it fails: {str(message['broken'])[:300]} ({self.doing[0]})")
            return True
        else:
            self.outcome.figures = dict(message["figures"])
            return True
        return False

    def _finding(self, data: Mapping[str, Any]) -> Finding:
        code = str(data["code"])
        message, name, hint = (str(data[key])[:2000] for key in ("message", "field", "hint"))
        return Finding(code, CODES[code].severity, message, self.file.path, int(data["line"]), name, hint)

    def _conclude(self, ending: Ending, limits: Limits) -> None:
        """A finding for every end but the ordinary one."""
        what = self.doing[0]
        if ending.kind == "left":
            self._add("TF605", "processes started by the sources were still there at the end")
        elif ending.kind == "processes":
            self._add("TF605", f"started processes without end ({what})", ending)
        elif ending.kind == "step":
            self._add("TF602", f"stopped after {limits.step_s:g} s: {what}", ending)
        elif ending.kind == "total":
            self._add("TF602", f"stopped after {limits.total_s:g} s in all: {what}", ending)
        elif ending.kind == "printed":
            self._add("TF604", f"stopped after printing {limits.printed_bytes >> 10} KiB ({what})", ending)
        elif ending.kind == "garbled":
            self._add("TF603", f"wrote into the checks' own pipe ({what})", ending)
        elif ending.kind == "exit":
            tail = " | ".join(ending.printed.strip().split("\n")[-_PRINTED_LINES:])[:300]
            self._add("TF603", f"{_death(ending.status)} ({what})" + (f"; it printed: {tail}" if tail else ""), ending)

    def _add(self, code: str, message: str, ending: Ending | None = None) -> None:
        """A finding at the innermost line of the spec that the child was executing, else where the step began."""
        _, name, line = self.doing
        line = line or self.file.lines.get(name, 0)
        frame = re.search(rf'File "{re.escape(str(self.file.path))}", line (\d+)', ending.trace if ending else "")
        if frame:
            line = int(frame[1])
            name = field_at(self.file, line) or name
        entry = CODES[code]
        self.outcome.findings.append(Finding(code, entry.severity, message, self.file.path, line, name, entry.fix))


def _death(status: int) -> str:
    """In words, how a process ended."""
    if status >= 0:
        return f"ended the process with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"crashed the process with {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _ignore(_: str) -> None:
    """Where there is no terminal, nothing is shown."""


class _Terminal:
    """One line on stderr that is rewritten, if stderr is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._at = 0.0

    def show(self, text: str) -> None:
        """Rewrite the line, at most ten times a second."""
        now = time.monotonic()
        if self._shown and now - self._at > 0.1:
            self._at = now
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{text[:width]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
