"""What a grading ends in: a status, the record that supports it, and the public form of that record."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Exchange

SCHEMA = 1


class Status(enum.StrEnum):
    """Every way a grading can end. All but the last are a verdict on the submission."""

    PASSED = "passed"
    IMPORT_ERROR = "import_error"
    """The file does not import, or does not define the function."""
    WRONG_TYPE = "wrong_type"
    """Something other than a plain tensor, or a tuple of them, was returned."""
    WRONG_COUNT = "wrong_count"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    NOT_FINITE = "not_finite"
    """NaN or infinity where the reference has none, or the reverse."""
    INCORRECT = "incorrect"
    INPUTS_MODIFIED = "inputs_modified"
    RUNTIME_ERROR = "runtime_error"
    """The function raised, or the CUDA context broke."""
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_DIED = "worker_died"
    IMPOSSIBLE_TIME = "impossible_time"
    """Faster than the unavoidable bytes and FLOPs allow at the device's datasheet peaks."""
    CLOCK_MISMATCH = "clock_mismatch"
    """The time the worker claims is no time at all, or longer than the wall clock saw."""
    PROTOCOL_VIOLATION = "protocol_violation"
    """The worker answered what no honest worker answers."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """The environment is broken; nothing is said about the submission."""

    @property
    def meaning(self) -> str:
        """One sentence for a reader of the result."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.PASSED: "Every call was verified and passed.",
    Status.IMPORT_ERROR: "The submission does not import or does not define the function.",
    Status.WRONG_TYPE: "The function did not return a plain tensor (or a tuple of them).",
    Status.WRONG_COUNT: "The function returned another number of tensors than the contract says.",
    Status.WRONG_SHAPE: "An output has another shape than the contract says.",
    Status.WRONG_DTYPE: "An output has another dtype than the contract says.",
    Status.NOT_FINITE: "An output holds NaN or infinity where the reference does not, or the other way round.",
    Status.INCORRECT: "An output differs from the reference by more than a gate allows.",
    Status.INPUTS_MODIFIED: "The function wrote into its inputs.",
    Status.RUNTIME_ERROR: "The function raised an exception.",
    Status.TIMEOUT: "The submission took longer than its time limit.",
    Status.OUT_OF_MEMORY: "The submission ran out of memory.",
    Status.WORKER_DIED: "The submission's process died.",
    Status.IMPOSSIBLE_TIME: "A call was faster than the device can move or compute what no implementation can avoid.",
    Status.CLOCK_MISMATCH: "The submission's process reported times that cannot be.",
    Status.PROTOCOL_VIOLATION: "The submission's process broke the protocol.",
    Status.INFRASTRUCTURE_ERROR: "The grading could not be carried out; this says nothing about the submission.",
}


@dataclass
class CallFailure:
    """The first failure: where it happened and, for the evaluator, what exactly differed."""

    kind: str
    """Shape kind: "correct", "quick", "measure", "graded", or "" before any call."""
    ordinal: int
    """Which shape of that kind, from 1."""
    case: str
    """The case's name, or "" for the default inputs."""
    message: str
    shape: list[int] = field(default_factory=list)
    seed: int | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    """`compare.OutputReport` of each output, as dicts."""
    traceback: str = ""
    """The submission's own traceback."""


@dataclass
class ShapeResult:
    """Everything measured at one shape. Times in milliseconds; None where nothing was timed."""

    kind: str
    ordinal: int
    shape: list[int]
    work: int
    calls: int
    wall_ms: list[float] = field(default_factory=list)
    """t1 - t0 of each timed call by the broker's events, raw, in order."""
    claim_ms: list[float] = field(default_factory=list)
    """What the worker's events said of each timed call."""
    launches: list[dict[str, Any]] = field(default_factory=list)
    """`clock.Overhead` of the trusted launches, the first before and the others after the submission, raw."""
    broker_ms: list[float] = field(default_factory=list)
    """What the broker's own events say of its part (reveal, flush, snapshot) of each timed call."""
    c_ms: float | None = None
    c_next_ms: float | None = None
    delta_ms: float | None = None
    score_ms: float | None = None
    """max(median claim, median T - delta)."""
    interval_ms: list[float] | None = None
    """95 % interval of the score time."""
    bounded: bool = False
    """False where the limit is under `clock.UNBOUNDED_BELOW` deltas: such a time is shown and never scored."""
    metric: float | None = None
    fraction_of_limit: float | None = None
    limit_ms: float | None = None
    errors: dict[str, float] = field(default_factory=dict)
    """Worst E of each output over all calls."""
    tile_ratios: dict[str, float] = field(default_factory=dict)
    regions: dict[str, float] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)

    def add(self, exchange: Exchange) -> None:
        """Keep a timed call's raw times."""
        self.wall_ms.append(exchange.wall_ms)
        self.claim_ms.append(exchange.claim_ms)
        self.broker_ms.append(exchange.reveal_ms + exchange.snapshot_ms)

    @property
    def claim_median_ms(self) -> float | None:
        """Median of the claims."""
        return statistics.median(self.claim_ms) if self.claim_ms else None


@dataclass
class Result:
    """One grading. `score` and `reward` are numbers only where the status is passed and the run was timed."""

    task: str
    task_version: str
    spec_digest: str
    metric: str
    submission_sha256: str
    mode: str
    """"grade" or "measure"."""
    status: Status
    message: str = ""
    timed: bool = False
    score: float | None = None
    score_interval: list[float] | None = None
    reward: float | None = None
    shapes: list[ShapeResult] = field(default_factory=list)
    failure: CallFailure | None = None
    calls_verified: int = 0
    ceilings: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    confinement: dict[str, Any] = field(default_factory=lambda: {"tier": "unconfined"})
    clock: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    started_at: str = ""
    duration_s: float = 0.0
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        self.status = Status(self.status)
        if self.score is not None and (self.status is not Status.PASSED or not self.timed):
            raise ValueError("only a passed, timed grading has a score")
        if self.reward is not None and self.status is not Status.PASSED:  # a rehearsal's reward is not timed
            raise ValueError("only a passed grading has a reward")

    def to_json(self) -> dict[str, Any]:
        """The private form: everything."""
        return dataclasses.asdict(self)

    def public_json(self) -> dict[str, Any]:
        """The public form: ordinals instead of graded shapes; no seeds, coordinates or tracebacks.

        Of graded shapes no times either: a metric times a time is the work, from which a shape can be guessed, and a
        list of claims is what a submission likes to say.
        """
        data = self.to_json()
        for shape in data["shapes"]:
            del shape["seeds"]
            if shape["kind"] == "graded":
                relative = shape["delta_ms"] / shape["score_ms"] if shape["score_ms"] else None
                for name in _PRIVATE_OF_GRADED:
                    del shape[name]
                shape["delta_of_score_time"] = relative
        if self.status is Status.INFRASTRUCTURE_ERROR:
            # what follows may be a traceback of the broker, whose errors name shapes
            data["message"] = self.message.partition("\n")[0]
        failure = data["failure"]
        if failure is not None:
            del failure["seed"]
            for output in failure["outputs"]:
                del output["differences"]
            if failure["kind"] == "graded":
                failure["shape"], failure["traceback"] = [], ""
                failure["message"] = Status(data["status"]).meaning
                data["message"] = f"graded shape {failure['ordinal']}: {failure['message']}"
                for output in failure["outputs"]:
                    output["message"] = ""
        return data


_PRIVATE_OF_GRADED = (
    "shape", "work", "wall_ms", "claim_ms", "broker_ms", "launches", "c_ms", "c_next_ms", "delta_ms", "score_ms",
    "interval_ms", "limit_ms",
)  # fmt: skip


def from_json(data: dict[str, Any]) -> Result:
    """Inverse of `Result.to_json`.

    Raises:
        TypeError, ValueError: not a result of this schema.
    """
    if data.get("schema") != SCHEMA:
        raise ValueError(f"not a result of schema {SCHEMA}")
    failure = data.get("failure")
    return Result(
        **{
            **data,
            "shapes": [ShapeResult(**_with_numbers(shape)) for shape in data.get("shapes", [])],
            "failure": CallFailure(**failure) if failure else None,
        }
    )


def _with_numbers(value: Any) -> Any:
    """Undo `_finite` where every text but a shape's kind stands for a number."""
    if isinstance(value, dict):
        return {key: _with_numbers(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_with_numbers(v) for v in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def geometric_mean(values: list[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def dumps(data: Any) -> str:
    """JSON text without NaN or infinity, which strict readers refuse."""
    return json.dumps(_finite(data), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that `path` holds either its old content or all of the new one.

    Raises:
        OSError: the directory is missing or full; the old file is untouched.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files; whoever may read the folder may read this
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
