"""Which templates prose may be (TF412): few, because rendering a template is running a stranger's code.

A template of Jinja can reach any object of the process through attributes, and can loop for ever. So its syntax tree
is held to a list: names, ranges (`graded.NAME`, `.min`, `.max`, `.values`), filters, numbers, comparisons, `if`, and
a `for` over `.values` that is not inside another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import jinja2
from jinja2 import nodes

from taskfactory.checks.report import Report

# What nearly all prose uses; text with no other brace needs no parsing to be judged.
_PLAIN_TAG = re.compile(
    r"\{\{ ?(?:(?:graded|measure|quick|correct)\.[A-Za-z]\w*(?:\.(?:min|max|values))?|tol|kappa|epsilon)"
    r"(?: ?\| ?(?:digits\(\d\)|thousands))? ?\}\}"
)
_FILTERS = {"digits", "thousands", "round", "int", "float", "abs", "join", "min", "max", "length"}
_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Getattr, nodes.Filter, nodes.Const, nodes.If,
    nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Add, nodes.Sub, nodes.Div,
    nodes.Neg, nodes.For, nodes.Keyword,
)  # fmt: skip


def check_template(report: Report, field: str) -> bool:
    """Whether a field may be rendered; if not, findings say why."""
    text = getattr(report.file.spec, field)
    problems = list(template_problems(text))
    for line, message in problems:
        offset = sum(len(row) + 1 for row in text.split("\n")[: line - 1])
        code = "TF420" if message.startswith("not a valid template") else "TF412"
        report.add(code, field, message, offset=offset)
    return not problems


def template_problems(text: str) -> list[tuple[int, str]]:
    """Why a text may not be rendered as prose: (line within the text, message) each; empty if it may."""
    if "{" not in _PLAIN_TAG.sub(" ", text):
        return []
    try:
        tree = _parser().parse(text)
    except jinja2.TemplateSyntaxError as error:
        return [(error.lineno, f"not a valid template: {error.message}")]
    except RecursionError:
        return [(1, "not a valid template: nested too deeply")]
    return list(_walk(tree, in_loop=False))


@lru_cache(maxsize=1)
def _parser() -> jinja2.Environment:
    # Parses only; what may be rendered is rendered by `taskfactory.prose`.
    return jinja2.Environment(autoescape=False)


def _walk(node: nodes.Node, *, in_loop: bool) -> Iterator[tuple[int, str]]:
    said = _problem(node, in_loop=in_loop)
    if said:
        yield node.lineno or 1, said
        return
    for child in node.iter_child_nodes():
        yield from _walk(child, in_loop=in_loop or isinstance(node, nodes.For))


def _problem(node: nodes.Node, *, in_loop: bool) -> str:
    if not isinstance(node, _ALLOWED):
        return f"a template in prose may not use {type(node).__name__}"
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        return f"a template in prose may not use the attribute {node.attr!r}"
    if isinstance(node, nodes.Name) and node.name.startswith("_"):
        return f"a template in prose may not use the name {node.name!r}"
    if isinstance(node, nodes.Filter) and node.name not in _FILTERS:
        return f"a template in prose may not use the filter {node.name!r}"
    if isinstance(node, nodes.For):
        if in_loop or node.recursive:
            return "a template in prose may not nest loops"
        if not isinstance(node.iter, nodes.Getattr) or node.iter.attr != "values":
            return "a template in prose may loop over .values only"
    return ""
