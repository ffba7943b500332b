"""Rendering: determinism, the layout of a bundle, what its files say, and what must never be in them."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from taskfactory import render as module
from taskfactory.errors import SpecError
from taskfactory.grader import compare
from taskfactory.load import load_spec
from taskfactory.render import APP, CANARY, TESTS, readme, render, task_facts, task_json, vendored_grader
from test_prose import FIXTURE, edited

IMAGE = "example/base@sha256:" + "0" * 64
ORACLE = '"""An oracle."""\n\n\ndef row_scale(x, weight, eps=1e-6):\n    return "the secret of the oracle"\n'


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return render(load_spec(FIXTURE), image=IMAGE, solution=ORACLE)


def test_same_spec_same_bytes(files):
    again = render(load_spec(FIXTURE), image=IMAGE, solution=ORACLE)
    assert list(again.items()) == list(files.items())


def test_bytes_do_not_depend_on_hash_seed(files):
    code = (
        "import sys, hashlib; from taskfactory.load import load_spec; from taskfactory.render import render\n"
        "f = render(load_spec(sys.argv[1]), image=sys.argv[2], solution=None)\n"
        "print(hashlib.sha256(repr(f).encode()).hexdigest())"
    )
    tools = str(Path(module.__file__).resolve().parents[1])
    seen = {
        subprocess.run(
            [sys.executable, "-c", code, str(FIXTURE), IMAGE], capture_output=True, text=True, check=True,
            env={"PYTHONPATH": tools, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(seen) == 1


def test_layout(files):
    names = {name for name in files if "/grader/" not in name}
    assert names == {
        "README.md", "instruction.md", "task.toml", "environment/Dockerfile",
        "environment/app/README.md", "environment/app/reference.py", "environment/app/make_inputs.py",
        "environment/app/row_scale.py", "environment/app/measure.py", "environment/app/task.json",
        "tests/task.json", "tests/reference.py", "tests/make_inputs.py", "tests/test.sh", "tests/Dockerfile",
        "solution/row_scale.py", "solution/solve.sh",
    }  # fmt: skip
    assert not any(name.startswith("solution/") for name in render(load_spec(FIXTURE), image=IMAGE))


def test_grader_is_vendored_unchanged(files):
    package = Path(module.__file__).parent / "grader"
    for path in package.rglob("*.py"):
        name = f"grader/{path.relative_to(package).as_posix()}"
        assert files[APP + name].encode() == files[TESTS + name].encode() == path.read_bytes()
    assert "__init__.py" in vendored_grader()


def test_task_json(files):
    hidden, public = json.loads(files[TESTS + "task.json"]), json.loads(files[APP + "task.json"])
    assert hidden["shapes"]["graded"] == [[4111, 7168], [8209, 5120], [16411, 3584]]
    assert hidden["work"]["quick"] == [512 * (4 * 1024 + 4) + 4 * 1024]
    assert hidden["floor"]["quick"] == [[hidden["work"]["quick"][0], 4 * 512 * 1024]]
    assert hidden["parameters"] == ["x", "weight", "eps"]
    assert hidden["outputs"] == [{"name": "y", "dtypes": ["bfloat16"]}, {"name": "scale", "dtypes": ["float32"]}]
    assert hidden["cases"] == ["given_eps", "zero_rows"]
    assert hidden["has_regions"] is True
    for key in ("shapes", "work", "floor"):
        assert hidden[key].pop("graded")
        assert "graded" not in public[key]
    assert public == hidden


MIX = """    timed_src='''
def mix(M, N, seed):
    \"\"\"A few rows are | larger.\"\"\"
    x, weight = _mk(M, N, seed)
    return 2 * x, weight
''',
"""


def test_mixed_inputs_are_named_wherever_inputs_are_spoken_of(tmp_path, files):
    assert json.loads(files[TESTS + "task.json"])["mixed"] is False
    assert "return _mk(*shape, seed=seed)" in files[APP + "make_inputs.py"]
    assert "**Timed calls** get the ordinary inputs" in files[APP + "README.md"]
    made = render(edited(tmp_path, "    cases_src=", MIX + "    cases_src="), image=IMAGE)
    hidden, public = json.loads(made[TESTS + "task.json"]), json.loads(made[APP + "task.json"])
    assert hidden["mixed"] is public["mixed"] is True
    assert hidden["cases"] == ["given_eps", "zero_rows"]
    for folder in (APP, TESTS):
        assert MIX.split("'''")[1].strip("\n") in made[folder + "make_inputs.py"]
        assert "return mix(*shape, seed=seed)" in made[folder + "make_inputs.py"]
    shown = made[APP + "README.md"]
    assert "A few rows are \\| larger." in shown
    assert "as the case `mixed`" in shown
    assert "get the ordinary inputs" not in shown
    assert "\n\n\n" not in shown


def test_task_json_without_optional_fields():
    file = load_spec(FIXTURE)
    facts = {**task_facts(file), "floor": None}
    assert json.loads(task_json(facts, graded=False))["floor"] is None


@pytest.mark.parametrize("folder", [APP, TESTS])
def test_python_files_compile(files, folder):
    for name, text in files.items():
        if name.startswith(folder) and name.endswith(".py"):
            compile(text, name, "exec")


def test_sources_are_kept_verbatim(files):
    spec = load_spec(FIXTURE).spec
    for source in (spec.reference_src, spec.regions_src):
        assert source.strip("\n") in files[APP + "reference.py"]
    for source in (spec.flops_src, spec.make_inputs_src, spec.cases_src):
        assert source.strip("\n") in files[APP + "make_inputs.py"]


def test_a_file_imports_exactly_what_it_needs_of_the_other(files):
    assert "\nfrom make_inputs import _padding\n" in files[APP + "reference.py"]
    assert "import" not in files[APP + "make_inputs.py"].replace("import torch", "")


def test_files_that_need_each_other(tmp_path):
    file = edited(tmp_path, "x[::2] = 0", "x[::2] = 0 * _mean_square(x)[0]")
    made = render(file, image=IMAGE)
    (tmp_path / "app").mkdir()
    for name in ("reference.py", "make_inputs.py"):
        text = made[APP + name].replace("import torch\n", "torch = None\n")
        (tmp_path / "app" / name).write_text(text, "utf-8")
    for first in ("reference, make_inputs", "make_inputs, reference"):
        code = f"import {first}; print(make_inputs._mean_square, reference._padding)"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "app", check=True, capture_output=True)


def test_starter_keeps_signature_and_docstring(files):
    text = files[APP + "row_scale.py"]
    assert "import" not in text
    namespace: dict[str, object] = {}
    exec(text, namespace)
    function = namespace["row_scale"]
    assert str(inspect.signature(function)) == "(x, weight, eps=1e-06)"
    assert inspect.cleandoc(function.__doc__) == load_spec(FIXTURE).spec.returns_doc
    with pytest.raises(NotImplementedError, match=r"row_scale\.py"):
        function(1, 2)


@pytest.mark.parametrize("doc", ['ends with a quote "', "a back\\\\slash", 'three \\"\\"\\" quotes', "one line"])
def test_starter_survives_any_docstring(tmp_path, doc):
    old = re.search(r'returns_doc="""(.*?)""",', FIXTURE.read_text("utf-8"), re.S)[1]
    file = edited(tmp_path, f'returns_doc="""{old}"""', f"returns_doc='''{doc}'''")
    tree = ast.parse(render(file, image=IMAGE)[APP + "row_scale.py"])
    assert ast.get_docstring(tree.body[1]) == file.spec.returns_doc.rstrip()


def test_readme_states_every_gate(files):
    text = files[APP + "README.md"]
    for phrase in (
        "def row_scale(x, weight, eps=1e-6): ...", "`(y, scale)` in this order", "`y` in bfloat16, `scale` in float32",
        "<= 1.2e-2", "<= 2.5 * 1.2e-2 * max(||r||_run, 0.1 * M)", "| edge_rows | `y` | 6e-3 |",
        "The first and the last row.",
        "| `given_eps` | A given eps, \\| which matters |", "| `zero_rows` | Every other row is zero. |",
        "| 8192 | 4096 | 0.1343 |", "**Faithfulness.**", "--shape 512,1024", "rows * (2 * N + 2 * N + 4) + 4 * N",
        "at most 1 MiB", "by Test Author",
    ):  # fmt: skip
        assert phrase in text
    assert readme(load_spec(FIXTURE)) == text
    assert "\n\n\n" not in text
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == [
        "What is in `/app`", "The computation", "The function", "The shapes", "How you are scored", "Correctness",
        "Precision", "Hints", "Measuring", "Rules", "What you are not told",
    ]  # fmt: skip


def test_readme_of_exact_outputs_speaks_of_no_error(tmp_path):
    file = edited(tmp_path, '(("bfloat16",), ("float32",))', '(("int32",), ("uint8",))')
    text = render(file, image=IMAGE)[APP + "README.md"]
    assert "(`y`, `scale`) must equal the reference exactly" in text
    assert "||_run" not in text


def test_numbers_said_twice_agree():
    assert module.TILE == compare.TILE


def test_minimal_spec_has_no_holes(tmp_path):
    """Without any optional field the README has neither empty sections nor leftovers of a template."""
    text = FIXTURE.read_text("utf-8")
    for name in ("derived_src", "floor_src", "cases_src", "regions_src"):
        text = re.sub(rf"    {name}='''.*?''',\n", "", text, flags=re.S)
    text = re.sub(r"    (output_dtypes|tile_kappa|authors)=.*\n", "", text)
    text = re.sub(r"One matrix has .* elements\.", "", text)
    path = tmp_path / "row_scale.py"
    path.write_text(text, "utf-8")
    made = render(load_spec(path), image=IMAGE)
    shown = made[APP + "README.md"]
    assert "region" not in shown.replace("in the regime", "")
    assert "case_" not in shown
    assert "None" not in shown
    assert "\n\n\n" not in shown
    assert "regions" not in made[APP + "reference.py"]
    assert json.loads(made[TESTS + "task.json"])["floor"] is None


def spellings(shape):
    """A shape's tuple in the ways in which a file might give it away."""
    for separator in (", ", ",", " x ", "x", "×", " × ", "; ", " ", "_", "-", " | ", "\n"):
        yield separator.join(map(str, shape))
    yield ", ".join(f"{n}={v}" for n, v in zip(("M", "N"), shape, strict=True))
    yield ", ".join(f'"{n}": {v}' for n, v in zip(("M", "N"), shape, strict=True))


def test_nothing_of_the_hidden_part_is_under_app(files):
    spec = load_spec(FIXTURE).spec
    public = {name: text for name, text in files.items() if name.startswith("environment/") or name == "instruction.md"}
    everything = "\n".join(public.values())
    for shape in spec.grader_shapes:
        for spelled in spellings(shape):
            assert spelled not in everything
        assert str(spec.grader_shapes[0][0] * 1000) not in everything
    hidden = json.loads(files[TESTS + "task.json"])
    for number in hidden["work"]["graded"]:
        assert str(number) not in everything
    assert "secret of the oracle" not in everything
    assert ORACLE not in everything
    # No seed is written down anywhere: the only ones are parameters.
    assert not re.search(r"seed\s*=\s*\d", public[APP + "make_inputs.py"] + public[APP + "reference.py"])
    # The machine of the solver is built from environment/ alone.
    assert "tests" not in files["environment/Dockerfile"].split("FROM")[1]


@pytest.mark.parametrize(
    "leak",
    ["(4111, 7168)", "M=4111, N=7168", "4111 x 7168", "`4111` × `7168`", "{{ graded.M.min }}, {{ graded.N.max }}"],
)
def test_a_graded_shape_in_prose_is_refused(tmp_path, leak):
    file = edited(tmp_path, 'A row fits in shared memory."""', f'One of them is {leak}."""')
    with pytest.raises(SpecError, match="graded shape"):
        render(file, image=IMAGE)


def test_app_runs_without_our_dependencies(files, tmp_path):
    """reference.py and make_inputs.py need torch only (here a stand-in), the starter and measure.py nothing."""
    for name, text in files.items():
        if name.startswith(APP):
            path = tmp_path / name.removeprefix(APP)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    (tmp_path / "torch.py").write_text("", "utf-8")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "for banned in ('pydantic', 'taskfactory', 'jinja2', 'click', 'rich', 'numpy'): sys.modules[banned] = None\n"
        "import reference, make_inputs, measure, row_scale\n"
        "assert callable(reference.row_scale) and callable(make_inputs.make_inputs) and callable(measure.main)\n"
        "assert make_inputs.canonical_work(2, 8) == 2 * (4 * 8 + 4) + 4 * 8\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


def test_measure_shows_the_commands_of_the_readme(files, tmp_path):
    path = tmp_path / "measure.py"
    path.write_text(files[APP + "measure.py"], "utf-8")
    command = [sys.executable, "-I", str(path), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    commands = re.search(r"```bash\n(.*?)```", files[APP + "README.md"], re.S)[1]
    assert commands in shown
    assert "--shape 512,1024" in commands


def test_grader_imports_nothing_that_a_solvers_machine_lacks():
    allowed = set(sys.stdlib_module_names) | {"torch", "triton"}
    for name, text in vendored_grader().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in allowed, name


def test_task_toml(files):
    task = tomllib.loads(files["task.toml"])
    assert task["schema_version"] == "1.4"
    assert task["artifacts"] == ["/app/row_scale.py"]
    assert task["task"]["name"] == "taskfactory/row-scale"
    assert task["task"]["authors"] == [{"name": "Test Author"}]
    assert task["task"]["keywords"] == ["normalisation", "memory-bound"]
    assert task["verifier"]["environment_mode"] == "separate"
    assert task["agent"]["user"] not in ("root", 0)
    for part in (task["environment"], task["verifier"]["environment"]):
        assert (part["gpus"], part["network_mode"]) == (1, "no-network")


def test_harbor_files(files):
    for name in ("environment/Dockerfile", "tests/Dockerfile"):
        assert f"\nFROM {IMAGE}\n" in files[name]
        assert CANARY in files[name]
    for name in ("instruction.md", "task.toml", "tests/test.sh", "solution/solve.sh", APP + "README.md"):
        assert CANARY in files[name]
    assert "/app/README.md" in files["instruction.md"]
    for name in ("tests/test.sh", "solution/solve.sh"):
        subprocess.run(["sh", "-n"], input=files[name], text=True, check=True)


def test_solve_puts_the_oracle_in_place(files, tmp_path):
    for name in ("row_scale.py", "solve.sh"):
        (tmp_path / name).write_text(files["solution/" + name], "utf-8")
    target = tmp_path / "submission.py"
    env = {"TASKFACTORY_SUBMISSION": str(target), "PATH": os.environ["PATH"]}
    subprocess.run(["sh", str(tmp_path / "solve.sh")], env=env, check=True)
    assert target.read_text("utf-8") == ORACLE
