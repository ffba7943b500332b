"""The tasks as a taskset of verifiers 0.4 (`verifiers.v1`), under the id `taskfactory-verifiers`.

    vf-validate taskfactory-verifiers --runtime.type subprocess --taskset.options=--rehearse
    vf-eval taskfactory-verifiers ...

A package of its own, since verifiers finds a taskset by the name of a top-level module. The solver works in verifiers'
runtime; its one file is then graded on the machine that runs verifiers, in the interpreter TASKFACTORY_PYTHON names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf
from pydantic import Field

from taskfactory.grader.task import MAX_SUBMISSION_BYTES
from taskfactory.verifying import app_files, bundle_of, known_tasks, local_instruction, module_of, verify

__all__ = ["KernelTaskset"]


class KernelConfig(vf.TasksetConfig):
    """Which tasks, and further words for the grader."""

    tasks: list[str] = Field(default_factory=list)
    """Names of tasks; empty for all that are known."""
    options: str = ""
    """Further words for the grader, such as `--rehearse`."""


class KernelData(vf.TaskData):
    """What a task needs beside its prompt."""

    bundle: str = ""
    module: str = ""
    options: str = ""


class KernelTask(vf.Task[KernelData, vf.State, vf.TaskConfig]):
    """One kernel to write."""

    async def setup(self, runtime: vf.Runtime) -> None:
        """Put the solver's files into the working directory."""
        for name, path in app_files(Path(self.data.bundle)).items():
            await runtime.write(name, path.read_bytes())

    @vf.reward(weight=1.0)
    async def speed(self, runtime: vf.Runtime, trace: vf.Trace) -> float:
        """The verifier's reward; a machine that cannot measure is an error."""
        try:
            submission: bytes | None = await runtime.read(self.data.module, max_bytes=MAX_SUBMISSION_BYTES)
        except (vf.SandboxError, OSError):
            submission = None
        verified = await asyncio.to_thread(verify, Path(self.data.bundle), submission, options=self.data.options)
        trace.info["taskfactory"] = verified.details
        return verified.reward

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        """Whether the bundle's own solution earns anything; None without one."""
        solution = Path(self.data.bundle, "solution", self.data.module)
        if not solution.is_file():
            return None
        await runtime.write(self.data.module, solution.read_bytes())
        submission = await runtime.read(self.data.module)
        verified = await asyncio.to_thread(verify, Path(self.data.bundle), submission, options=self.data.options)
        return verified.reward > 0.0


class KernelTaskset(vf.Taskset[KernelTask, KernelConfig]):
    """All known tasks, or those named."""

    def load(self) -> Iterator[KernelTask]:
        """One task a bundle."""
        for name in self.config.tasks or known_tasks():
            bundle = bundle_of(name)
            data = KernelData(
                id=name, name=name, prompt=local_instruction(bundle), bundle=str(bundle), module=module_of(bundle),
                options=self.config.options, resources=vf.TaskResources(gpu="1"),
            )  # fmt: skip
            yield KernelTask(data, self.config.task)
