"""The Python embedded in a spec, judged by its syntax trees (TF2xx). Nothing is run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskfactory.checks.names import identifier
from taskfactory.checks.report import Report
from taskfactory.checks.scopes import check_scopes
from taskfactory.grader.task import MIXED
from taskfactory.spec import SOURCE_FIELDS

Trees = Mapping[str, ast.Module]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as it is written: `kind` is "" for an ordinary one, else `*`, `**`, "positional" or "keyword"."""

    name: str
    default: str | None = None
    kind: str = ""

    def __str__(self) -> str:
        prefix = self.kind if self.kind.startswith("*") else ""
        return prefix + self.name + ("" if self.default is None else f"={self.default}")


def parse_sources(report: Report) -> dict[str, ast.Module]:
    """The tree of every source that is given and parses; the others are reported."""
    spec = report.file.spec
    names = [name for name in SOURCE_FIELDS if getattr(spec, name)]
    names += [f"{field}.{key}" for field in ("alternates", "ablations") for key in getattr(spec, field)]
    trees: dict[str, ast.Module] = {}
    for name in names:
        text = report.file.value(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
                compile(tree, "<source>", "exec", dont_inherit=True)  # finds a stray return and the like
            trees[name] = tree
        except SyntaxError as error:
            report.add("TF201", name, f"Python cannot parse this: {error.msg}", row=error.lineno or 1)
        except (RecursionError, MemoryError, ValueError) as error:
            report.add("TF201", name, f"Python cannot parse this: {error or 'nested too deeply'}")
    return trees


def check_sources(report: Report, trees: Trees) -> None:
    """Every check of the sources, given those that parse."""
    _check_imports(report, trees)
    signature = signature_parameters(report)
    _check_reference(report, trees, signature)
    _check_shape_functions(report, trees)
    _check_cases(report, trees)
    _check_regions(report, trees, signature)
    _check_variants(report, trees)
    _check_extras(report)
    if signature is not None:
        _check_idle(report, trees, signature)
    check_scopes(report, trees)


def parameters(function: ast.FunctionDef) -> list[Parameter]:
    """The parameters of a function, in order."""
    args = function.args
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    found = [
        Parameter(arg.arg, None if d is None else ast.unparse(d), "positional" if arg in args.posonlyargs else "")
        for arg, d in zip(plain, defaults, strict=True)
    ]
    if args.vararg:
        found.append(Parameter(args.vararg.arg, kind="*"))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(Parameter(arg.arg, None if default is None else ast.unparse(default), "keyword"))
    if args.kwarg:
        found.append(Parameter(args.kwarg.arg, kind="**"))
    return found


def functions(tree: ast.Module | None) -> dict[str, ast.FunctionDef]:
    """Top-level functions by name; of several of one name the last, as Python would have it."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)} if tree else {}


def signature_parameters(report: Report) -> list[Parameter] | None:
    """The parameters that `signature` promises; None after reporting why it cannot be read."""
    spec = report.file.spec
    try:
        tree = ast.parse(f"def {spec.signature}:\n    pass\n")
        (function,) = tree.body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        function = None
    if not isinstance(function, ast.FunctionDef) or len(function.body) != 1 or "\n" in spec.signature:
        report.add("TF204", "signature", f"{spec.signature!r} is not of the form func(a, b, c=None)")
        return None
    if function.name != spec.func:
        report.add("TF204", "signature", f"the signature names {function.name!r}, but func is {spec.func!r}")
    found = parameters(function)
    for parameter in found:
        if parameter.kind:
            report.add("TF204", "signature", f"{parameter} is not an ordinary parameter")
            return None
    annotated = [arg.arg for arg in function.args.args if arg.annotation] or function.returns
    if annotated:
        report.add("TF204", "signature", "annotations belong into returns_doc")
    return found


def _check_imports(report: Report, trees: Trees) -> None:
    for node in trees["reference_imports"].body if "reference_imports" in trees else []:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not isinstance(node, ast.Import | ast.ImportFrom):
            report.add("TF207", "reference_imports", f"`{_short(node)}` is not an import", row=node.lineno)


def _check_reference(report: Report, trees: Trees, signature: Sequence[Parameter] | None) -> None:
    spec = report.file.spec
    if "reference_src" not in trees:
        if not spec.reference_src.strip():
            report.add("TF202", "reference_src", f"does not define {spec.func}()")
        return
    tree = trees["reference_src"]
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == spec.func]
    if len(defined) != 1:
        said = f"does not define {spec.func}()" if not defined else f"defines {spec.func}() {len(defined)} times"
        report.add("TF202", "reference_src", said, row=defined[1].lineno if defined else 1)
    elif signature is not None and parameters(defined[0]) != list(signature):
        got = ", ".join(map(str, parameters(defined[0])))
        wanted = ", ".join(map(str, signature))
        report.add("TF203", "reference_src", f"takes ({got}), but signature says ({wanted})", row=defined[0].lineno)


def _check_shape_functions(report: Report, trees: Trees) -> None:
    shape = list(report.file.spec.shape_names)
    _require(report, trees, "make_inputs_src", "_mk", [*shape, "seed"])
    _require(report, trees, "flops_src", "canonical_work", shape, extras=True)
    if report.file.spec.timed_src is not None:
        _require(report, trees, "timed_src", "mix", [*shape, "seed"])
    if report.file.spec.derived_src is not None and "derived_src" in trees:
        found = functions(trees["derived_src"])
        if not {"derived", "claims"} & set(found):
            report.add("TF205", "derived_src", "defines neither derived() nor claims()")
        for name in ("derived", "claims"):
            if name in found:
                _check_parameters(report, "derived_src", found[name], shape, extras=False)
    if report.file.spec.floor_src is not None:
        _require(report, trees, "floor_src", "floor", shape)


def _require(report: Report, trees: Trees, field: str, name: str, wanted: list[str], *, extras: bool = False) -> None:
    if field not in trees:
        if not (report.file.value(field) or "").strip():
            report.add("TF205", field, f"does not define {name}()")
        return
    function = functions(trees[field]).get(name)
    if function is None:
        report.add("TF205", field, f"does not define {name}()")
    else:
        _check_parameters(report, field, function, wanted, extras=extras)


def _check_parameters(
    report: Report, field: str, function: ast.FunctionDef, wanted: list[str], *, extras: bool
) -> None:
    got = parameters(function)
    tail = got[len(wanted) :]
    good = [p.name for p in got[: len(wanted)]] == wanted and not any(p.kind for p in got)
    good = good and (all(p.default is not None for p in tail) if extras else not tail)
    if not good:
        message = f"{function.name}() takes ({', '.join(map(str, got))}), and should take ({', '.join(wanted)})"
        report.add("TF206", field, message, row=function.lineno)


def _check_cases(report: Report, trees: Trees) -> None:
    for name, function in functions(trees.get("timed_src")).items():
        if name != "mix" and not name.startswith("_"):
            message = f"{name}() is neither mix() nor a helper (_{name})"
            report.add("TF210", "timed_src", message, row=function.lineno)
    if "cases_src" not in trees:
        return
    found = functions(trees["cases_src"])
    wanted = [*report.file.spec.shape_names, "seed"]
    cases = {name: node for name, node in found.items() if name.startswith("case_")}
    for name, function in found.items():
        if name in cases:
            if not re.fullmatch(r"case_[a-z0-9_]*[a-z0-9]", name):
                report.add("TF210", "cases_src", f"{name}() is not case_ and a lower-case name", row=function.lineno)
            _check_parameters(report, "cases_src", function, wanted, extras=False)
            if name == f"case_{MIXED}" and "timed_src" in trees:
                message = f"{name}() has the name under which mix() of timed_src is verified"
                report.add("TF210", "cases_src", message, row=function.lineno)
        elif not name.startswith("_"):
            message = f"{name}() is neither a case (case_{name}) nor a helper (_{name})"
            report.add("TF210", "cases_src", message, row=function.lineno)
    if not cases:
        report.add("TF205", "cases_src", "defines no case_<name>()")


def _check_regions(report: Report, trees: Trees, signature: Sequence[Parameter] | None) -> None:
    if "regions_src" not in trees:
        return
    function = functions(trees["regions_src"]).get("regions")
    if function is None:
        report.add("TF205", "regions_src", "does not define regions()")
        return
    got = parameters(function)
    if [p.kind for p in got] == ["*"] or signature is None or got == list(signature):
        return
    if [p.name for p in got] != [p.name for p in signature]:
        wanted = ", ".join(map(str, signature))
        message = f"regions() takes ({', '.join(map(str, got))}), and should take ({wanted}) or (*args)"
        report.add("TF206", "regions_src", message, row=function.lineno)


def _check_variants(report: Report, trees: Trees) -> None:
    """Alternates and ablations stand in for the reference, so they take what it takes."""
    spec = report.file.spec
    reference = functions(trees.get("reference_src")).get(spec.func)
    for field in ("alternates", "ablations"):
        for key in getattr(spec, field):
            name = f"{field}.{key}"
            if not identifier(key):
                report.add("TF208", name, f"{key!r} is not an identifier")
            if key == spec.func:
                report.add("TF208", name, f"{key!r} is the reference's own name")
            if key in spec.alternates and key in spec.ablations and field == "ablations":
                report.add("TF208", name, f"{key!r} is an alternate too")
            if name not in trees:
                continue
            function = functions(trees[name]).get(key)
            if function is None:
                report.add("TF208", name, f"does not define {key}()")
            elif reference is not None and [p.name for p in parameters(function)] != [
                p.name for p in parameters(reference)
            ]:
                got = ", ".join(map(str, parameters(function)))
                wanted = ", ".join(map(str, parameters(reference)))
                report.add("TF208", name, f"{key}() takes ({got}), and should take ({wanted})", row=function.lineno)


def _check_extras(report: Report) -> None:
    """Optional parts without which a task is not trustworthy. They have no line of their own: the name's is used."""
    spec = report.file.spec
    line = report.file.lines.get("name", 0)
    if not spec.alternates:
        report.add("TF221", "alternates", "there is no second implementation to hold the tolerance against", line=line)
    if len(spec.ablations) < 2:
        said = "is only one ablation" if spec.ablations else "are no ablations"
        report.add("TF222", "ablations", f"there {said} to show that the tolerance bites", line=line)
    if spec.floor_src is None:
        report.add("TF223", "floor_src", "there is no floor to judge impossible times by", line=line)
    if spec.cases_src is None:
        report.add("TF224", "cases_src", "there are no cases, so one kind of input is verified", line=line)
    if spec.timed_src is None:
        said = "timed calls get the inputs of _mk, from which the cases can be told"
        report.add("TF227", "timed_src", said, line=line)
    if spec.derived_src is None:
        report.add("TF226", "derived_src", "there are no derived values and no claims to hold the prose to", line=line)


def _check_idle(report: Report, trees: Trees, signature: Sequence[Parameter]) -> None:
    """Defaulted arguments that neither `_mk` nor any case ever sets. Only plain returned tuples are judged."""
    makers = [functions(trees.get("make_inputs_src")).get("_mk"), functions(trees.get("timed_src")).get("mix")]
    makers += [f for name, f in functions(trees.get("cases_src")).items() if name.startswith("case_")]
    makers = [maker for maker in makers if maker is not None]
    if not makers:
        return
    for index, parameter in enumerate(signature):
        if parameter.default is None:
            continue
        if not any(_sets(maker, index, parameter) for maker in makers):
            report.add(
                "TF225",
                "make_inputs_src",
                f"argument {parameter.name!r} always has its default value {parameter.default}",
                row=makers[0].lineno,  # type: ignore[union-attr]
                hint=f"add a case that passes another {parameter.name}",
            )


def _sets(maker: ast.FunctionDef | None, index: int, parameter: Parameter) -> bool:
    """Whether some return of an input maker gives the parameter a value other than its default, as far as one sees."""
    assert maker is not None
    returned = [node.value for node in ast.walk(maker) if isinstance(node, ast.Return)]
    for value in returned:
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            continue  # the case does not apply
        if not isinstance(value, ast.Tuple) or any(isinstance(e, ast.Starred) for e in value.elts):
            return True  # built in some other way: cannot be seen, so nothing is said
        if index < len(value.elts) and ast.unparse(value.elts[index]) != parameter.default:
            return True
    return False


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 40 else text[:39] + "…"
