"""The table of every code a finding can carry: what it means, why it is asked for, and what to do.

`python -m taskfactory.checks.codes` prints docs/checks.md. Codes are stable: a dropped one is not given out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding. `why` says what goes wrong otherwise, `fix` what the author should do."""

    code: str
    severity: Literal["error", "warning"]
    title: str
    why: str
    fix: str


_GROUPS = (
    ("TF0", "Loading", "The file is read as data and never run; these say why it cannot be."),
    ("TF1", "Names", "Names end up as file names, identifiers and headings of the bundle."),
    ("TF2", "Sources", "The Python embedded in a spec, judged by its syntax tree."),
    ("TF3", "Shapes and numbers", "The lists of shapes and the figures of the gates."),
    ("TF4", "Prose", "What a solver reads has to be complete, true, and silent about the graded shapes."),
    (
        "TF5",
        "Formulas",
        "`canonical_work`, `derived`, `claims` and `floor`, evaluated at every shape by an interpreter "
        "of plain arithmetic (`taskfactory.formulas`).",
    ),
    ("TF6", "Behaviour", "What only shows when the sources run, in a child that can be killed (`validate --run`)."),
)  # fmt: skip

_TABLE = (
    # Loading.
    Code("TF001", "error", "file cannot be read",
         "A missing file, a folder, a special file or one above 4 MiB is not a spec.",
         "Name a regular Python file."),
    Code("TF002", "error", "file is not UTF-8 text",
         "Every file made from the spec is UTF-8.",
         "Save the file as UTF-8 and remove NUL bytes."),
    Code("TF003", "error", "file does not parse",
         "A spec is an ordinary Python file.",
         "Correct the syntax at the line named."),
    Code("TF004", "error", "no SPEC",
         "The spec is the `TaskSpec(...)` call bound to the name `SPEC` at the top level.",
         "Write `SPEC = TaskSpec(...)`."),
    Code("TF005", "error", "SPEC bound more than once",
         "A file holds one task, and which of two calls is meant would depend on running it.",
         "Keep one; put the other into a file of its own."),
    Code("TF006", "error", "SPEC is not a plain TaskSpec call",
         "Positional arguments and `**` hide what is set.",
         "Call `TaskSpec` with `field=literal` keywords only; `.validate()` may follow."),
    Code("TF007", "error", "value is not a literal",
         "Nothing in a spec is executed, so a computed value cannot be known.",
         "Write the value itself. Adjacent strings are joined without `+`; prose may use `{{ graded.NAME }}`."),
    Code("TF008", "error", "unknown field",
         "A misspelt field would otherwise be ignored silently.",
         "Use the name suggested, or remove the field."),
    Code("TF009", "error", "field or key given twice",
         "Only one of the two values would count.",
         "Remove one."),
    Code("TF010", "error", "field is missing",
         "Every field without a default is needed to build the task.",
         "Add the field."),
    Code("TF011", "error", "value has the wrong type",
         "Types are checked strictly: the string `\"5\"` is not the number 5, and True is not 1.",
         "Write a value of the type named."),
    Code("TF012", "error", "ALT_SRC or DROP_SRC cannot be taken in",
         "Sources at module level become alternates and ablations under the name of the function they define.",
         "Define one function in each, with a name that is not taken."),
    Code("TF013", "error", "text cannot be encoded",
         "A lone surrogate (`\\ud800`) cannot be written to any file.",
         "Remove it."),
    Code("TF014", "warning", "Python warns about the file",
         "Mostly an invalid escape sequence, which a later Python refuses.",
         "Double the backslash, or make the string raw."),
    # Names.
    Code("TF101", "error", "task name is not kebab-case",
         "The name becomes a folder, an image tag and a key of result tables.",
         "Use lower-case letters and digits in words joined by single hyphens, beginning with a letter; at most 64."),
    Code("TF102", "error", "module is not a plain file name",
         "A submission is one file beside the bundle's own, imported by its name.",
         "Use an identifier in lower case followed by `.py`, such as `based.py`."),
    Code("TF103", "error", "module hides another module",
         "A file called `random.py` or `reference.py` would be imported in place of the real one.",
         "Choose a name that is not in the standard library, torch, triton, numpy or the bundle."),
    Code("TF104", "error", "func is not an identifier",
         "It is the name of a Python function.",
         "Use a valid name that is not a keyword."),
    Code("TF105", "error", "shape_names are not usable",
         "They are parameter names of `_mk`, `canonical_work` and the other formulas.",
         "Use distinct identifiers that are neither keywords nor `seed`."),
    Code("TF106", "warning", "file name differs from the task name",
         "`taskfactory build NAME` finds a spec by its file name.",
         "Name the file like the task, with underscores for hyphens."),
    Code("TF107", "error", "two specs of one name",
         "Their bundles would overwrite one another.",
         "Rename one of the tasks."),
    Code("TF108", "error", "tuple_names do not fit compare",
         "Outputs of a tuple are reported by name; a single tensor has none to give.",
         "Give distinct identifiers exactly when `compare` is `\"tuple\"`."),
    Code("TF109", "warning", "keywords are missing or repeated",
         "They are how a task is found.",
         "List each once."),
    Code("TF110", "error", "version is not a version",
         "Scores of different versions are never compared, so versions have to be told apart.",
         "Write `MAJOR.MINOR.PATCH`."),
    Code("TF111", "error", "output_dtypes do not fit the outputs",
         "There is one group of allowed dtypes per output, by torch's names.",
         "Give one tuple of names such as `(\"bfloat16\", \"float32\")` per output."),
    # Sources.
    Code("TF201", "error", "source does not parse",
         "It is pasted into a file of the bundle.",
         "Correct the syntax at the line named."),
    Code("TF202", "error", "reference does not define func",
         "The reference is called by that name.",
         "Define `func` once, at the top level of `reference_src`."),
    Code("TF203", "error", "reference's parameters differ from signature",
         "A solver writes to the signature and is compared with the reference.",
         "Make names, order and defaults the same."),
    Code("TF204", "error", "signature cannot be used",
         "It becomes the `def` line of the starter.",
         "Write `func(name, name, name=default)` without `*`, `**`, `/` or annotations."),
    Code("TF205", "error", "function is missing from its source",
         "Each source field has to define the function it is there for.",
         "Define it at the top level of the field."),
    Code("TF206", "error", "function has the wrong parameters",
         "It is called with the integers of a shape by position (and a seed, where inputs are made).",
         "Take exactly `shape_names`, and `seed` last for `_mk` and cases. `canonical_work` may add defaulted ones."),
    Code("TF207", "error", "reference_imports holds more than imports",
         "The imports are repeated at the head of several files.",
         "Move everything else to the source that needs it."),
    Code("TF208", "error", "alternate or ablation does not define its function",
         "It is called in the place of `func`, under the name of its entry.",
         "Define a function of exactly that name with the reference's parameters."),
    Code("TF209", "error", "name is not defined anywhere",
         "The source would fail when it is run.",
         "Import it in `reference_imports`, or define it in one of the sources."),
    Code("TF210", "error", "cases_src defines a badly named function",
         "Every function called `case_<name>` is a case; others are helpers and begin with an underscore.",
         "Rename it."),
    Code("TF221", "warning", "no alternate",
         "A tolerance that no second implementation was held against is a guess.",
         "Add an independent correct implementation to `alternates`."),
    Code("TF222", "warning", "fewer than two ablations",
         "Nothing shows that leaving out an essential feature fails.",
         "Add the reference with a feature removed, for two features the prose calls essential."),
    Code("TF223", "warning", "no floor",
         "Without `floor_src` an impossible time is judged by the bytes of the outputs alone.",
         "Define `floor(...) -> (bytes, flops)`: what no implementation can avoid."),
    Code("TF224", "warning", "no cases",
         "Correctness is then checked on one kind of input only.",
         "Define `case_<name>(..., seed)` for ties, extremes, explicit scalars and unread data."),
    Code("TF225", "warning", "argument is never exercised",
         "An argument that always has its default value can be ignored by a submission unseen.",
         "Pass another value from `_mk` or from a case."),
    Code("TF226", "warning", "no derived values and no claims",
         "Numbers typed into the prose drift from the shapes.",
         "Define `derived` and render `{{ graded.NAME }}`; define `claims` for sentences that depend on the shapes."),
    # Shapes and numbers.
    Code("TF301", "error", "shape has the wrong length",
         "A shape is one integer per name in `shape_names`.",
         "Add or remove integers."),
    Code("TF302", "error", "shape has an integer below 1",
         "Sizes are positive.",
         "Correct it."),
    Code("TF303", "error", "shape is listed twice",
         "It would count twice in the score, or waste the solver's time.",
         "Remove one."),
    Code("TF304", "error", "graded shape is public",
         "Measure, quick and correct shapes are given to the solver; graded ones are hidden.",
         "Change one of the two."),
    Code("TF305", "error", "list of shapes is empty",
         "Each of the four lists is used.",
         "Add at least one shape."),
    Code("TF306", "error", "tolerance is out of range",
         "It is a relative error, and is compared as `E <= tol`.",
         "Choose a value above 0 and below 1."),
    Code("TF307", "error", "tile gate is out of range",
         "`tile_kappa` multiplies the tolerance; `tile_epsilon` is a share of the median tile norm.",
         "Choose `tile_kappa` of at least 1 and `tile_epsilon` from 0 to 1."),
    # Prose.
    Code("TF401", "error", "prose is empty",
         "Every section of the README is filled from a field.",
         "Write it."),
    Code("TF402", "error", "prose holds a placeholder",
         "It would be shown to solvers.",
         "Replace TODO, TBD, FIXME and the like by text."),
    Code("TF403", "error", "text gives a graded shape away",
         "Graded shapes are hidden; a kernel written for five known shapes is not a general one.",
         "Give ranges instead: `{{ graded.NAME }}`."),
    Code("TF404", "warning", "text gives part of a graded shape away",
         "Two neighbouring sizes that occur in no public shape narrow the hidden ones down.",
         "Give ranges instead, or add a public shape with the same pair."),
    Code("TF405", "warning", "number called the tolerance is not tol",
         "The solver aims at the wrong number.",
         "Write `{{ tol }}`."),
    Code("TF406", "warning", "typed range disagrees with the graded shapes",
         "The solver tunes for sizes that are not graded, or is surprised by some that are.",
         "Write `{{ graded.NAME }}`, which is rendered from the shapes. A typed range must contain the real one and "
         "go beyond it by at most 10 %."),
    Code("TF407", "warning", "typed size cannot be tied to the shapes",
         "No derived value, and not the canonical work, has that range.",
         "Compute it in `derived` and write `{{ graded.NAME | digits(1) }}`."),
    Code("TF408", "error", "contract names an unknown argument",
         "The table is what a solver writes the function by.",
         "Name the arguments as in `signature`."),
    Code("TF409", "error", "contract leaves an argument out",
         "The table is what a solver writes the function by.",
         "Add a row for it."),
    Code("TF410", "warning", "contract has no table of arguments",
         "Shapes and dtypes cannot be checked against the signature.",
         "Add a table whose first column is `arg`."),
    Code("TF411", "warning", "returns_doc leaves an argument out",
         "It becomes the docstring of the starter.",
         "Describe the argument."),
    Code("TF412", "error", "template goes beyond what prose may use",
         "Prose is rendered from strangers' files too, so only names, ranges, filters, conditions and simple loops "
         "are let through.",
         "Use `{{ graded.NAME }}`, `.min`, `.max`, `.values`, `tol` and filters; compute anything else in `derived`."),
    Code("TF420", "error", "template cannot be rendered",
         "A name that does not exist must not become an empty string.",
         "Use a name of a shape or of a derived value; the message lists them."),
    Code("TF421", "error", "rendered prose shows a graded shape",
         "Ranges with one value can put a hidden shape together.",
         "Give fewer of them in one place."),
    # Formulas.
    Code("TF501", "error", "formula cannot be evaluated",
         "It is evaluated without running Python, so only plain arithmetic is understood, within bounds.",
         "Use numbers, tuples, lists, dicts, loops, the usual builtins and `math`; nothing from torch."),
    Code("TF502", "error", "canonical_work is not a positive integer",
         "Scores are this number divided by a time.",
         "Return an int above 0; use `//` where `/` gives a float."),
    Code("TF503", "error", "derived does not return numbers by name",
         "Its values are shown in prose under their keys.",
         "Return a dict from identifiers, none of them a shape name, to ints and floats; the same keys at each shape."),
    Code("TF504", "error", "claim is false at a graded shape",
         "The sentence it backs is wrong there.",
         "Correct the sentence, or the shapes."),
    Code("TF505", "error", "claims does not return booleans by sentence",
         "A claim either holds or does not.",
         "Return a dict from sentences to bools."),
    Code("TF506", "error", "floor does not return (bytes, flops)",
         "Times below it are judged impossible.",
         "Return two finite numbers of at least 0, not both 0."),
    Code("TF507", "error", "canonical_work's docstring names the other unit",
         "Bytes for `GB/s`, FLOPs for `TFLOP/s`; a mix-up is off by orders of magnitude.",
         "Correct the docstring, or the metric."),
    Code("TF508", "warning", "floor exceeds canonical_work",
         "Work that cannot be avoided should have been counted.",
         "Look at both formulas again."),
)  # fmt: skip

CODES: dict[str, Code] = {entry.code: entry for entry in _TABLE}
"""Every code, in order."""


def render_docs() -> str:
    """docs/checks.md, from the table."""
    lines = [
        "# Checks",
        "",
        "Every finding has a code. Errors stop a build; warnings are advice, and errors under `--strict`.",
        "`taskfactory validate` prints each with file, line, field and what to do.",
        "",
        "This page is generated: `python -m taskfactory.checks.codes > docs/checks.md`.",
    ]
    for prefix, title, about in _GROUPS:
        entries = [entry for code, entry in sorted(CODES.items()) if code.startswith(prefix)]
        if not entries:
            continue
        lines += ["", f"## {title} ({prefix}xx)", "", about, ""]
        for entry in entries:
            lines += [
                f"### {entry.code}: {entry.title}",
                "",
                f"*{entry.severity}*. {entry.why}",
                "",
                f"**Fix.** {entry.fix}",
                "",
            ]
        lines.pop()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_docs(), end="")
