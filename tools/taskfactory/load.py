"""Read a spec file without running it.

The file is parsed, never executed: the `TaskSpec(...)` call bound to `SPEC` is found in the syntax tree and its
keywords are read as literals. So a stranger's file can be checked safely, and the line of everything is known.
"""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from taskfactory.checks.codes import CODES
from taskfactory.errors import SpecError
from taskfactory.findings import Finding, in_file_order
from taskfactory.formulas import Formulas, Source
from taskfactory.spec import FIELDS, TaskSpec
from taskfactory.syntax import assignments, bound_to_spec, callee, defined_function, kind_of, line_within, literal_hint

_MAX_BYTES = 4 << 20
_EXTRA_SOURCE = re.compile(r"(ALT|DROP)[A-Z0-9_]*_SRC")
_TRIPLE_THEN_NEWLINE = re.compile(r"[rRuU]?(\"\"\"|''')\\\r?\n")


@dataclass(frozen=True)
class SpecFile:
    """A loaded spec and where each part of it stands.

    `lines` maps a field to the line where its value begins, `field.key` and `field.index` to the parts of dicts
    and sequences; for a string, the line its first character is on. `warnings` are findings of loading itself.
    """

    path: Path
    spec: TaskSpec
    lines: Mapping[str, int]
    text: str = field(default="", repr=False)
    warnings: tuple[Finding, ...] = ()

    @cached_property
    def digest(self) -> str:
        """`sha256:...` over the spec's fields; see `TaskSpec.digest`."""
        return self.spec.digest()

    def line(self, name: str, offset: int = 0) -> int:
        """The line of a field, or of the character at `offset` of its text; 0 where it is not known.

        Exact for a triple-quoted string. For a string pieced together from several literals, the first line
        of the field that contains the words at `offset`.
        """
        base = self.lines.get(name, 0)
        if not base or not offset:
            return base
        value = self.value(name)
        if not isinstance(value, str):
            return base
        raw = self.text.split("\n")[base - 1 :]
        row = value.count("\n", 0, offset)
        wanted = value[value.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]
        whole = raw and any(quote in raw[0] for quote in ('"""', "'''"))
        if row < len(raw) and (whole or (wanted.strip() and wanted.strip() in raw[row])):
            return base + row
        words = value[offset:].split("\n", 1)[0][:24].strip()
        for index, line in enumerate(raw[: value.count("\n") + len(value) // 40 + 8]):
            if words and words in line:
                return base + index
        return base

    def value(self, name: str) -> Any:
        """The value of a field, or of one entry of a dict field written `field.key`."""
        head, _, key = name.partition(".")
        value = getattr(self.spec, head)
        return value.get(key) if key and isinstance(value, Mapping) else value

    def source(self, name: str) -> Source:
        """One source field (or `alternates.<name>`) with the place of its first line; empty if not given."""
        return Source(text=self.value(name) or "", path=self.path, first_line=self.lines.get(name, 0) or 1, field=name)

    @cached_property
    def _formulas(self) -> Formulas:
        names = ("flops_src", "derived_src", "floor_src")
        return Formulas([self.source(name) for name in names if self.value(name)])

    def formulas(self) -> Formulas:
        """`canonical_work`, `derived`, `claims`, `floor` and their helpers, ready to be evaluated.

        One object a file, which remembers results, so that checks, prose and task.json evaluate a shape once.
        """
        return self._formulas


def load_spec(path: Path | str) -> SpecFile:
    """Load one spec file.

    Raises:
        SpecError: the file cannot be read as a spec; every finding is listed.
    """
    return _Loader(Path(path)).load()


class _Loader:
    """Collects findings while reading one file, and gives up only where nothing further can be learned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.lines: dict[str, int] = {}

    def load(self) -> SpecFile:
        self.text = self._read()
        tree = self._parse()
        call = self._spec_call(tree)
        nodes, values = self._keywords(call)
        self._extra_sources(tree, values)
        spec = self._construct(values, nodes, call)
        if spec is None or self._has_errors():
            raise SpecError(in_file_order(self.findings))
        return SpecFile(self.path, spec, self.lines, self.text, tuple(self.findings))

    def _error(self, code: str, message: str, line: int = 0, field: str = "", hint: str = "") -> None:
        self.findings.append(Finding(code, "error", message, self.path, line, field, hint or CODES[code].fix))

    def _stop(self, code: str, message: str, line: int = 0, hint: str = "") -> SpecError:
        self._error(code, message, line, hint=hint)
        return SpecError(in_file_order(self.findings))

    def _has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def _read(self) -> str:
        try:
            if not self.path.exists():
                raise self._stop("TF001", "no such file")
            if not self.path.is_file():
                raise self._stop("TF001", "is not a regular file")
            if self.path.stat().st_size > _MAX_BYTES:
                raise self._stop("TF001", f"is larger than {_MAX_BYTES >> 20} MiB")
            raw = self.path.read_bytes()
        except OSError as error:
            raise self._stop("TF001", f"cannot be read: {error.strerror or error}") from None
        except ValueError as error:  # a NUL in the path itself
            raise self._stop("TF001", f"cannot be read: {error}") from None
        if b"\0" in raw:
            raise self._stop("TF002", "contains a NUL byte", raw[: raw.index(b"\0")].count(b"\n") + 1)
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise self._stop("TF002", f"is not UTF-8: {error.reason} at byte {error.start}", line) from None
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _parse(self) -> ast.Module:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                tree = ast.parse(self.text, filename=str(self.path))
            except SyntaxError as error:
                raise self._stop("TF003", f"Python cannot parse this: {error.msg}", error.lineno or 0) from None
            except (RecursionError, MemoryError, ValueError) as error:
                raise self._stop("TF003", f"Python cannot parse this: {str(error) or 'nested too deeply'}") from None
        for warning in caught:
            self.findings.append(
                Finding(
                    "TF014",
                    "warning",
                    str(warning.message),
                    self.path,
                    warning.lineno or 0,
                    hint='write the backslash twice, or make the string raw (r"""...""")',
                )
            )
        return tree

    def _spec_call(self, tree: ast.Module) -> ast.Call:
        bound = [(node, value) for node in tree.body for value in bound_to_spec(node)]
        if not bound:
            loose = next((n for n in ast.walk(tree) if isinstance(n, ast.Call) and callee(n) == "TaskSpec"), None)
            raise self._stop(
                "TF004",
                "no SPEC = TaskSpec(...) at the top level of the file",
                loose.lineno if loose else 1,
                "bind this call to the name SPEC, outside of any function or condition" if loose else "",
            )
        if len(bound) > 1:
            for node, _ in bound[1:]:
                self._error(
                    "TF005", f"SPEC is bound again; it was bound first at line {bound[0][0].lineno}", node.lineno
                )
            raise SpecError(in_file_order(self.findings))
        node, value = bound[0]
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "validate":
            value = value.func.value
        if not isinstance(value, ast.Call) or callee(value) != "TaskSpec":
            raise self._stop(
                "TF006",
                "SPEC is not a TaskSpec(...) call",
                node.lineno,
                "write SPEC = TaskSpec(name=..., ...), with `.validate()` after it or not",
            )
        return value

    def _keywords(self, call: ast.Call) -> tuple[dict[str, ast.expr], dict[str, Any]]:
        nodes: dict[str, ast.expr] = {}
        values: dict[str, Any] = {}
        for argument in call.args:
            self._error("TF006", "TaskSpec takes keywords only", argument.lineno, hint="write field=value")
        for keyword in call.keywords:
            name = keyword.arg
            if name is None:
                self._error("TF006", "** hides the fields from anyone who reads the file", keyword.value.lineno)
            elif name in nodes:
                self._error("TF009", f"field {name!r} is given twice", keyword.value.lineno, name)
            elif name not in FIELDS:
                self._unknown(name, keyword.lineno)
                nodes[name] = keyword.value
            else:
                nodes[name] = keyword.value
                self._place(name, keyword.value)
                try:
                    values[name] = self._literal(keyword.value, name)
                except _NotLiteralError:
                    pass
                except RecursionError:
                    self._error("TF007", "is nested too deeply", keyword.value.lineno, name)
        return nodes, values

    def _unknown(self, name: str, line: int) -> None:
        close = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.6)
        close = close or [field for field in FIELDS if name.startswith(field) or field.startswith(name)]
        hint = f"did you mean {close[0]!r}?" if close else "docs/spec.md lists the fields"
        self._error("TF008", f"TaskSpec has no field {name!r}", line, name, hint)

    def _place(self, name: str, node: ast.expr) -> None:
        self.lines[name] = self._first_line(node)
        if isinstance(node, ast.Tuple | ast.List):
            for index, element in enumerate(node.elts):
                self.lines[f"{name}.{index}"] = self._first_line(element)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self.lines[f"{name}.{key.value}"] = self._first_line(value)

    def _first_line(self, node: ast.expr) -> int:
        """Where the text begins: a triple quote followed by a backslash puts it one line further down."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            lines = self._raw_lines
            start = lines[node.lineno - 1].encode()[node.col_offset :].decode("utf-8", "replace") + "\n"
            if _TRIPLE_THEN_NEWLINE.match(start):
                return node.lineno + 1
        return node.lineno

    @cached_property
    def _raw_lines(self) -> list[str]:
        # Python counts lines at \n only (form feeds and the like do not end one), so splitlines would be wrong.
        return self.text.split("\n")

    def _literal(self, node: ast.expr, name: str) -> Any:
        """The value of a literal; anything else becomes a finding.

        Tuples and lists both come back as tuples: a spec is frozen.
        """
        if isinstance(node, ast.Constant):
            return self._constant(node, name)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            number = self._literal(node.operand, name)
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number if isinstance(node.op, ast.USub) else number
        elif isinstance(node, ast.Tuple | ast.List):
            return tuple(self._all_literals(node.elts, name))
        elif isinstance(node, ast.Dict):
            return self._dict(node, name)
        self._error("TF007", f"{kind_of(node)} is not a literal", node.lineno, name, literal_hint(node))
        raise _NotLiteralError

    def _all_literals(self, nodes: list[ast.expr], name: str) -> list[Any]:
        """Every element, after visiting all of them so that each bad one is reported."""
        values, bad = [], False
        for node in nodes:
            try:
                values.append(self._literal(node, name))
            except _NotLiteralError:
                bad = True
        if bad:
            raise _NotLiteralError
        return values

    def _constant(self, node: ast.Constant, name: str) -> Any:
        value = node.value
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                self._error("TF013", "contains a lone surrogate, which no file can hold", node.lineno, name)
                raise _NotLiteralError from None
            return value
        self._error("TF007", f"a {type(value).__name__} is not allowed in a spec", node.lineno, name)
        raise _NotLiteralError

    def _dict(self, node: ast.Dict, name: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        bad = False
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                line = (key or value).lineno
                self._error("TF007", "a key of a dict must be a string literal", line, name)
                bad = True
                continue
            if key.value in result:
                self._error("TF009", f"key {key.value!r} is given twice", key.lineno, name)
            try:
                result[self._constant(key, name)] = self._literal(value, f"{name}.{key.value}")
            except _NotLiteralError:
                bad = True
        if bad:
            raise _NotLiteralError
        return result

    def _extra_sources(self, tree: ast.Module, values: dict[str, Any]) -> None:
        """Take module-level ALT_SRC, DROP_SRC, DROP2_SRC, ... in as alternates and ablations."""
        for statement in tree.body:
            for target, value in assignments(statement):
                if not _EXTRA_SOURCE.fullmatch(target):
                    continue
                field_name = "alternates" if target.startswith("ALT") else "ablations"
                if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                    self._error("TF007", f"{target} must be a string literal", statement.lineno, field_name)
                    continue
                self._add_source(field_name, target, value.value, self._first_line(value), values)

    def _add_source(self, field_name: str, target: str, text: str, line: int, values: dict[str, Any]) -> None:
        function = defined_function(text, values.get("signature"))
        if function is None:
            self._error("TF012", f"{target} does not define a function", line, field_name)
            return
        known = values.setdefault(field_name, {})
        if not isinstance(known, dict):
            return  # already reported as the wrong type
        if function in known:
            self._error("TF012", f"{target} defines {function!r}, which {field_name} has already", line, field_name)
            return
        known[function] = text
        self.lines.setdefault(field_name, line)
        self.lines[f"{field_name}.{function}"] = line

    def _construct(self, values: dict[str, Any], nodes: dict[str, ast.expr], call: ast.Call) -> TaskSpec | None:
        try:
            return TaskSpec(**values)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False):
                self._translate(problem["type"], problem["loc"], problem["msg"], problem["input"], nodes, call)
        return None

    def _translate(
        self,
        kind: str,
        loc: tuple[int | str, ...],
        message: str,
        value: Any,
        nodes: dict[str, ast.expr],
        call: ast.Call,
    ) -> None:
        """One of pydantic's complaints, as a finding at the line of the very element."""
        name = str(loc[0]) if loc else ""
        if kind == "missing":
            if name not in nodes:  # a field that is there but not literal has its finding already
                hint = f"add {name}=..., see docs/spec.md"
                self._error("TF010", f"field {name!r} is missing", call.lineno, name, hint)
            return
        where = name + "".join(f"[{part!r}]" for part in loc[1:] if part != "[key]")
        line = line_within(nodes.get(name), loc[1:]) or self.lines.get(name, call.lineno)
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        text = (
            message.removeprefix("Input should be ").replace("a valid integer", "an integer").replace("a valid ", "a ")
        )
        self._error("TF011", f"{where} must be {text}, and is {shown}", line, name)


class _NotLiteralError(Exception):
    """Raised after a finding was recorded, to leave the value."""
