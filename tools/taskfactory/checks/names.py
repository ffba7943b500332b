"""Names: of the task, its module, function, shapes and outputs (TF1xx)."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence

from taskfactory.checks.report import Report
from taskfactory.findings import Finding
from taskfactory.load import SpecFile
from taskfactory.paths import spec_filename

_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MODULE = re.compile(r"[a-z_][a-z0-9_]*\.py")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
# What lies beside a submission in /app, and what it or the grader imports.
TAKEN_MODULES = {
    "reference",
    "make_inputs",
    "measure",
    "task",
    "grader",
    "torch",
    "triton",
    "numpy",
    "conftest",
    "solve",
    "test",
}
_DTYPES = {
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn",
    "float8_e5m2", "complex64", "complex128",
}  # fmt: skip


def kebab_case(name: str) -> bool:
    """Whether `name` may name a task."""
    return len(name) <= 64 and _KEBAB.fullmatch(name) is not None


def identifier(name: str) -> bool:
    """Whether `name` may name a parameter or a function."""
    return name.isidentifier() and not keyword.iskeyword(name)


def check_names(report: Report) -> None:
    """Every check of one spec's names."""
    spec = report.file.spec
    if not kebab_case(spec.name):
        report.add("TF101", "name", f"{spec.name!r} is not kebab-case", hint="for example fused-rms-norm")
    elif report.file.lines and report.file.path.name != spec_filename(spec.name):
        report.add("TF106", "name", f"the file is called {report.file.path.name}, not {spec_filename(spec.name)}")
    _check_module(report)
    if not identifier(spec.func):
        report.add("TF104", "func", f"{spec.func!r} is not a name a function can have")
    for index, name in enumerate(spec.shape_names):
        if not identifier(name) or name == "seed":
            report.add("TF105", f"shape_names.{index}", f"{name!r} is not a name a shape's integer can have")
    _check_repeats(report, "TF105", "shape_names", spec.shape_names)
    if not spec.shape_names:
        report.add("TF105", "shape_names", "there are no names")
    _check_outputs(report)
    if not spec.keywords:
        report.add("TF109", "keywords", "there are no keywords")
    _check_repeats(report, "TF109", "keywords", spec.keywords)
    if not _VERSION.fullmatch(spec.version):
        report.add("TF110", "version", f"{spec.version!r} is not of the form 1.0.0")


def check_distinct(files: Sequence[SpecFile]) -> list[Finding]:
    """Across specs: no two tasks of one name."""
    first: dict[str, SpecFile] = {}
    findings: list[Finding] = []
    for file in files:
        other = first.setdefault(file.spec.name, file)
        if other is not file and other.path.resolve() != file.path.resolve():
            report = Report(file)
            report.add("TF107", "name", f"{file.spec.name!r} is also the task of {other.path}")
            findings += report.findings
    return findings


def _check_module(report: Report) -> None:
    module = report.file.spec.module
    if not _MODULE.fullmatch(module) or not identifier(module.removesuffix(".py")):
        report.add("TF102", "module", f"{module!r} is not a plain lower-case file name like fused_norm.py")
    elif module.removesuffix(".py") in sys.stdlib_module_names | TAKEN_MODULES:
        report.add("TF103", "module", f"{module!r} hides a module of the same name")


def _check_outputs(report: Report) -> None:
    spec = report.file.spec
    names = spec.tuple_names or ()
    if spec.compare == "tuple" and not names:
        report.add("TF108", "tuple_names" if spec.tuple_names is not None else "compare", "a tuple needs tuple_names")
    if spec.compare == "tensor" and spec.tuple_names is not None:
        report.add("TF108", "tuple_names", 'compare="tensor" takes no tuple_names')
    for index, name in enumerate(names):
        if not identifier(name):
            report.add("TF108", f"tuple_names.{index}", f"{name!r} is not an identifier")
    _check_repeats(report, "TF108", "tuple_names", names)
    if spec.output_dtypes is None:
        return
    outputs = len(names) if spec.compare == "tuple" else 1
    if len(spec.output_dtypes) != outputs:
        report.add("TF111", "output_dtypes", f"{len(spec.output_dtypes)} groups for {outputs} outputs")
    for index, group in enumerate(spec.output_dtypes):
        for name in sorted(set(group) - _DTYPES):
            report.add("TF111", f"output_dtypes.{index}", f"torch has no dtype {name!r}")
        if not group:
            report.add("TF111", f"output_dtypes.{index}", "the group is empty, so nothing could pass")


def _check_repeats(report: Report, code: str, field: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            report.add(code, f"{field}.{index}", f"{name!r} is listed twice")
