"""The certificate of a task on a device: a JSON file beside its spec with every figure of a calibration.

    specs/certificates/<task>.<device>.json

It is tied to what the figures depend on (sources, gates, shapes), not to prose, so that prose may quote it. Nothing
here executes a spec or imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory.calibrate.figures import number
from taskfactory.calibrate.quoted import Short, quotable
from taskfactory.calibrate.verdict import Verdict, honest_use, judge, wrong_use
from taskfactory.errors import UsageError
from taskfactory.load import SpecFile
from taskfactory.spec import TaskSpec

SCHEMA = 2
"""Of the files; 2 has figures on timed inputs, and delta for each graded shape."""
DEVICES = ("cpu", "cuda")
_MEASURED = (
    "reference_imports", "flops_src", "reference_src", "make_inputs_src", "timed_src", "cases_src", "regions_src",
    "alternates", "ablations", "func", "compare", "tuple_names", "output_dtypes", "tol", "tile_kappa", "tile_epsilon",
    "shape_names", "correct_shapes",
)  # fmt: skip
_WORK = (
    "reference_imports", "flops_src", "derived_src", "floor_src", "reference_src", "make_inputs_src", "metric", "func",
    "compare", "output_dtypes", "shape_names", "grader_shapes", "measure_shapes", "correct_shapes",
)  # fmt: skip
_ON_A_DEVICE = ("measure_shapes", "grader_shapes")
"""Shapes that are measured too where there is a GPU."""


@dataclass(frozen=True)
class Certificate:
    """One calibration on one device."""

    path: Path
    data: Mapping[str, Any]

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return str(self.data["device"])

    def stale(self, spec: TaskSpec) -> bool:
        """Whether the spec has changed in what was measured."""
        if self.data["subject_digest"] != subject_digest(spec, self.device):
            return True
        sections = [self.data[name] for name in ("work", "graded_shapes") if name in self.data]
        return any(section["digest"] != work_digest(spec) for section in sections)

    def verdict(self, spec: TaskSpec) -> Verdict:
        """What its figures and the spec's explanations amount to."""
        return judge(self.data, spec.survivors)

    def summary(self) -> dict[str, Any]:
        """The figures that prose may quote and that go into the bundle; no shape is among them."""
        subjects, mutants = self.data["subjects"], self.data["mutants"]
        alternates = [entry for entry in subjects.values() if entry["kind"] == "alternate" and "use" in entry]
        use = honest_use(subjects, alternates_only=True)
        wrong, _ = wrong_use(subjects)
        return {
            "device": self.device,
            "machine": self.data["machine"],
            "subject_digest": self.data["subject_digest"],
            "seeds": len(self.data["seeds"]),
            "honest_error": max((number(entry["error"]) for entry in alternates), default=0.0),
            "honest_use": use,
            "wrong_use": None if math.isinf(wrong) else wrong,
            "mutants": mutants["by_values"],
            "mutation_score": mutants["score_by_values"],
            "survivors": mutants["counts"]["survived"],
        }


def subject_digest(spec: TaskSpec, device: str) -> str:
    """The hash of all that a calibration on a device depends on."""
    names = [*_MEASURED, *(_ON_A_DEVICE if device != "cpu" else ())]
    # Certificates from before there was a timed_src hold for specs that have none.
    values = {name: getattr(spec, name) for name in names if name != "timed_src" or spec.timed_src is not None}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def work_digest(spec: TaskSpec) -> str:
    """The hash of all that the sections on work and graded shapes depend on."""
    text = json.dumps({name: getattr(spec, name) for name in _WORK}, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def certificate_path(file: SpecFile, device: str) -> Path:
    """Where the certificate of a spec lies."""
    return file.path.resolve().parent / "certificates" / f"{file.spec.name}.{device}.json"


def read_certificate(path: Path) -> Certificate:
    """A certificate from its file.

    Raises:
        UsageError: it cannot be understood.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(path.read_bytes())
        certificate = Certificate(path, data)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        certificate.summary()
        judge(data, {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path}: not a certificate that can be understood ({said})") from error
    return certificate


def certificates_of(file: SpecFile) -> list[Certificate]:
    """The certificates of a spec that can be read and are not stale, CPU first."""
    found = []
    for device in DEVICES:
        path = certificate_path(file, device)
        try:
            certificate = read_certificate(path)
        except (OSError, UsageError):
            continue
        if not certificate.stale(file.spec):
            found.append(certificate)
    return found


def prose_figures(file: SpecFile) -> dict[str, Any] | None:
    """What prose may quote as `certificate.NAME`: the worst figures over the devices; None without a certificate.

    `mutants` were judged by their values, `rejected` of them rejected. `honest_error` is the largest E of an alternate,
    `honest_margin` how many times it would fit below a gate (absent if it is exact), `wrong_margin` how far beyond a
    gate the nearest ablation or trivial answer is (absent if all are exactly wrong). Single subjects are quoted by
    their names, see `calibrate.quoted`.
    """
    certificates = certificates_of(file)
    if not certificates:
        return None
    summaries = [certificate.summary() for certificate in certificates]
    use = max(summary["honest_use"] for summary in summaries)
    least = min(summaries, key=lambda summary: (summary["mutation_score"], summary["mutants"]))
    wrong = [summary["wrong_use"] for summary in summaries if summary["wrong_use"] is not None]
    figures: dict[str, Any] = {
        "devices": " and ".join(summary["machine"] for summary in summaries),
        "honest_error": Short(max(summary["honest_error"] for summary in summaries)),
        "mutants": least["mutants"],
        "rejected": least["mutants"] - least["survivors"],
        "mutation_score": least["mutation_score"],
    }
    figures |= {"honest_margin": Short(1 / use)} if use else {}
    figures |= {"wrong_margin": Short(min(wrong))} if wrong else {}
    return figures | quotable(file.spec, [certificate.data for certificate in certificates])


def write_certificate(path: Path, data: Mapping[str, Any]) -> None:
    """Write a certificate, one mutant and one shape a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.new")
    staging.write_text(_layout(data) + "\n", "utf-8")
    staging.replace(path)


def _layout(value: Any, indent: int = 0) -> str:
    """JSON with an object on one line where it is short or holds no object."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    nested = isinstance(value, Mapping | list) and bool(value) and len(line) + indent > 200
    if not nested:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, Mapping):
        rows = [f"{pad}{json.dumps(k, ensure_ascii=False)}: {_layout(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _layout(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
