"""The untrusted process: imports the submission, calls it when told to, and says where the outputs lie.

Nothing here is worth forging: there are no expected outputs, no seeds, no results, and the only clock that counts
runs in the broker. Whatever the submission does to this process can make its own grading fail, no more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import confine
from .processes import die_with_parent
from .protocol import MAX_DIMS, MAX_OUTPUTS, OutputDescriptor, Reply, Request, WorkerEnd


class _Refused(Exception):
    """A returned value that cannot be an output."""

    def __init__(self, reply: Reply, text: str) -> None:
        super().__init__(text)
        self.reply = reply


class Worker:
    """State between requests."""

    def __init__(self, end: WorkerEnd, arena_fd: int, output_fd: int, granted: dict[str, Any]) -> None:
        self.end = end
        self.granted = granted
        self.arena_fd, self.output_fd = arena_fd, output_fd
        self.setup: dict[str, Any] = {}
        self.function: Any = None
        self.probes: Any = None
        self.arguments: list[Any] = []
        self.probe: dict[str, Any] | None = None
        self.kept: Any = None

    def serve(self) -> None:
        """Answer requests until told to quit."""
        handlers: dict[Request, Callable[[Any], None]] = {
            Request.INIT: self.initialise,
            Request.IMPORT: self.import_submission,
            Request.PREPARE: self.prepare,
            Request.GO: self.call,
        }
        while True:
            request, payload = self.end.receive()
            if request is Request.QUIT:
                return
            try:
                handlers[request](payload)
            except BaseException as error:
                self.end.answer(self._reply_to(error, request), [], text=_report(error))

    def _reply_to(self, error: BaseException, request: Request) -> Reply:
        if isinstance(error, _Refused):
            return error.reply
        if request is Request.INIT:
            return Reply.SETUP_ERROR
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return Reply.OUT_OF_MEMORY
        return Reply.IMPORT_ERROR if request is Request.IMPORT else Reply.RUNTIME_ERROR

    def initialise(self, setup: dict[str, Any]) -> None:
        """Enter confinement, then start CUDA and map the shared arenas."""
        report = self._enter()
        import torch

        from . import memory

        self.setup = setup
        self.device = setup["device"]
        if self.device == "cuda":
            torch.cuda.init()
            torch.zeros(1, device="cuda")  # makes the primary context current in this thread
            self.arena = memory.bytes_at(memory.open_handle(bytes.fromhex(setup["handle"])), setup["arena_bytes"])
            self.tiny = torch.zeros(1, device="cuda")
            self.exporter = memory.Exporter()
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        else:
            torch.set_num_threads(1)
            self.arena = memory.map_file(self.arena_fd, setup["arena_bytes"])
            self.outputs = memory.map_file(self.output_fd, setup["output_bytes"])
        self.arena_range = range(self.arena.data_ptr(), self.arena.data_ptr() + self.arena.numel())
        if setup["trusted"]:
            from .probes import Probes

            self.probes = Probes(self.device)
        self.end.answer(Reply.OK, text=json.dumps(report))

    def _enter(self) -> dict[str, Any]:
        """Confine this process, which has one thread and has run nothing but imports so far."""
        if not self.granted["confine"]:
            return {}
        report = confine.enter(
            self.granted["scratch"], self.granted["readable"], self.granted["devices"], hidden=self.granted["hidden"],
            keep=[*self.end.descriptors, *(fd for fd in (self.arena_fd, self.output_fd) if fd >= 0)],
            log_refusals=self.granted.get("log_refusals", False),
        )  # fmt: skip
        return report.to_json()

    def import_submission(self, _: None) -> None:
        """Close what only the start-up needed, import the submission as a module of its own name, find the function."""
        if self.granted["confine"]:
            confine.seal()
        module = _import_file(self.setup["submission"])
        self.function = getattr(module, self.setup["func"], None)
        if not callable(self.function):
            raise _Refused(Reply.IMPORT_ERROR, f"the file defines no function {self.setup['func']!r}")
        self.end.answer(Reply.OK)

    def prepare(self, payload: dict[str, Any]) -> None:
        """Build the next call's arguments: fresh tensor objects over the arena, whose content is still the old one.

        A tiny kernel wakes this process's GPU context, which has been idle since the last call.
        """
        from .memory import build_arguments

        self.arguments = build_arguments(self.arena, payload["arguments"])
        self.probe = payload.get("probe")
        if self.device == "cuda":
            import torch

            self.tiny.add_(1)
            torch.cuda.synchronize()
        self.end.answer(Reply.OK)

    def call(self, _: None) -> None:
        """The timed part: call, wait for the device, answer."""
        import torch

        self.kept = None  # lets the caching allocator hand the last output's memory out again
        if self.device == "cuda":
            self.events[0].record()
            result = self._run()
            self.events[1].record()
            outputs = self._outputs(result)
            self.end.stage(self._describe(outputs))  # while the device works
            torch.cuda.synchronize()
            claim_ms = self.events[0].elapsed_time(self.events[1])
        else:
            started = time.perf_counter()
            result = self._run()
            claim_ms = (time.perf_counter() - started) * 1e3
            outputs = self._outputs(result)
            self.end.stage(self._describe(outputs))
        self.end.answer(Reply.OK, claim_ms=claim_ms)
        self.kept = outputs
        self.arguments = []

    def _run(self) -> Any:
        if self.probe is not None:
            return tuple(self.probes.run(self.probe))
        return self.function(*self.arguments)

    def _outputs(self, result: Any) -> list[Any]:
        import torch

        if self.setup["compare"] == "tensor" and self.probe is None:
            result = (result,)
        elif not isinstance(result, (tuple, list)):
            raise _Refused(Reply.WRONG_TYPE, f"returned {type(result).__name__}, expected a tuple of tensors")
        if self.probe is None and len(result) != self.setup["count"]:
            raise _Refused(Reply.WRONG_COUNT, f"returned {len(result)} tensors, expected {self.setup['count']}")
        for output in result:
            if type(output) is not torch.Tensor or output.layout is not torch.strided:
                raise _Refused(Reply.WRONG_TYPE, f"returned {type(output).__name__}, expected a plain torch.Tensor")
            if output.device.type != self.device:
                raise _Refused(Reply.WRONG_TYPE, f"returned a tensor on {output.device}, expected {self.device}")
            if output.dim() > MAX_DIMS or len(result) > MAX_OUTPUTS:
                raise _Refused(Reply.WRONG_TYPE, f"returned more than {MAX_OUTPUTS} tensors or {MAX_DIMS} dimensions")
            if output.numel() and output.data_ptr() in self.arena_range:
                raise _Refused(Reply.WRONG_TYPE, "returned a tensor that shares memory with an input")
        return list(result)

    def _describe(self, outputs: list[Any]) -> list[OutputDescriptor]:
        import torch

        from . import memory
        from .compare import dtype_name

        if self.device == "cuda":
            return [self.exporter.describe(output) for output in outputs]
        described, at = [], 0
        for output in outputs:
            # a tensor of one entry is contiguous at any stride, but viewed as bytes only at stride 1: hence clone
            flat = output.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
            nbytes = flat.numel() * flat.element_size()
            if at + nbytes > self.outputs.numel():
                raise _Refused(Reply.WRONG_TYPE, "returned more bytes than the contract's outputs can have")
            self.outputs[at : at + nbytes].copy_(flat.view(torch.uint8))
            descriptor = OutputDescriptor(
                b"", self.outputs.numel(), at, dtype_name(output.dtype),
                tuple(output.shape), output.contiguous().stride(),
            )  # fmt: skip
            described.append(descriptor)
            at += -(-nbytes // memory.ALIGNMENT) * memory.ALIGNMENT
        return described


def _import_file(path: str) -> ModuleType:
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as a normal import does: pickling, dataclasses and torch.compile look there
    spec.loader.exec_module(module)
    return module


def _report(error: BaseException) -> str:
    """The traceback without this file's own frames."""
    if isinstance(error, _Refused):
        return str(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def main(argv: list[str]) -> None:
    """Entry point: six descriptors (GO page, DONE page, GO bell, DONE bell, arenas or -1) and the grants as JSON."""
    *descriptors, granted = argv
    *channel, arena_fd, output_fd = (int(fd) for fd in descriptors)
    sys.dont_write_bytecode = True
    grants = json.loads(granted)
    die_with_parent(grants["supervisor"])  # should the supervisor be killed, nobody else would end this process
    worker = Worker(WorkerEnd(channel), arena_fd, output_fd, grants)
    with contextlib.suppress(KeyboardInterrupt):
        worker.serve()
    os._exit(0)  # no submission's atexit handlers, no waiting for its threads
