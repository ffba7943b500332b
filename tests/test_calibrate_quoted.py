"""Prose quotes certificates by template: the worst figures over the devices, and it reads well without any."""

from __future__ import annotations

import copy
import math
import re

import pytest

from calibrating import ours
from taskfactory.calibrate.certificate import certificate_path, prose_figures, read_certificate, write_certificate
from taskfactory.calibrate.quoted import Errors, Interval, Short, short
from taskfactory.load import SpecFile, load_spec
from taskfactory.paths import specs_dir, specs_in
from taskfactory.prose import render_prose
from taskfactory.spec import PROSE_FIELDS
from test_calibrate_complete import on_gpu

TASKS = [path.stem.replace("_", "-") for path in specs_in(specs_dir())]
DEVICES = ((), ("cpu",), ("cuda",), ("cpu", "cuda"))


def held(tmp_path, task: str, devices=(), change=lambda data: None) -> SpecFile:
    """A copy of one of our specs with certificates from some devices; those of a GPU are ours from a CPU, changed."""
    file = ours(task)
    path = tmp_path / file.path.name
    path.write_text(file.path.read_text("utf-8"), "utf-8")
    copied = load_spec(path)
    for device in devices:
        data = copy.deepcopy(dict(read_certificate(certificate_path(file, "cpu")).data))
        if device == "cuda":
            data = on_gpu(copied, data)
            change(data)
        write_certificate(certificate_path(copied, device), data)
    return copied


@pytest.mark.parametrize("devices", DEVICES, ids="+".join)
@pytest.mark.parametrize("task", TASKS)
def test_our_prose_reads_with_and_without_certificates(tmp_path, task, devices):
    prose = render_prose(held(tmp_path, task, devices))
    for field, text in prose.items():
        running = re.sub(r"```.*?```|`[^`\n]*`", "code", text, flags=re.DOTALL)
        lines = [line for line in running.split("\n") if not line.startswith((" ", "|"))]
        for fault in ("None", "nan", "{{", "{%", " .", " ,", "()", "..", "  "):
            assert not any(fault in line for line in lines), (field, fault)
        assert "\n\n\n" not in text, field
    cpu = read_certificate(certificate_path(ours(task), "cpu")).data["machine"]
    said = re.sub(r"\s+", " ", prose["precision_md"])
    assert (cpu in said) == ("cpu" in devices)
    assert bool(re.search(r"on (.* and )?X\b", said)) == ("cuda" in devices)
    assert ("damaged references" in said) == bool(devices)


@pytest.mark.parametrize("task", TASKS)
def test_no_measured_figure_is_typed(task):
    """What looks like an E stands in a template; 1e-6 belongs to an operation, 1e-5 and the like would be found."""
    spec = ours(task).spec
    for field in PROSE_FIELDS:
        text = re.sub(r"\{[{%].*?[%}]\}", "", getattr(spec, field) or "", flags=re.DOTALL)
        typed = set(re.findall(r"\b\d+(?:\.\d+)?e-\d+\b|(?<!\*\* -)\b0\.\d+\b", text)) - {"1e-6", "0.6", "0.0"}
        assert typed == set(), field
        assert "measured on a CPU" not in text, field


def test_the_worst_over_devices_is_quoted(tmp_path):
    task = "conv3d-tiled-decode-blend"

    def worse(data: dict) -> None:
        honest, wrong = data["subjects"]["alternates.shifted_products"], data["subjects"]["ablations.fp8_channels"]
        honest |= {"use": 0.6, "error": 0.005}
        wrong |= {"use": 1.25, "error": 0.01}
        for row in honest["shapes"]:
            if "default" in row:
                row["default"]["out"] = [0.005, 0.5, {"tile_border": 0.004}]

    file = held(tmp_path, task, ("cpu", "cuda"), worse)
    figures = prose_figures(file)
    assert figures is not None
    honest, wrong = figures["alternates"]["shifted_products"], figures["ablations"]["fp8_channels"]
    assert (float(honest["use"]), float(honest["error"])) == (0.6, 0.005)
    assert honest["default"].max == 0.005
    assert honest["default"].min < 0.001, "a range covers both devices"
    assert honest["regions"]["tile_border"]["default"].max == 0.004
    assert float(wrong["use"]) == 1.25
    assert figures["wrong_margin"] == 1.25
    assert figures["honest_margin"] == pytest.approx(1 / 0.6)
    assert figures["gpu"]
    assert figures["ceilings"]["flop_per_byte"] > 100
    assert "graded" in honest
    (tmp_path / "cpu").mkdir()
    alone = prose_figures(held(tmp_path / "cpu", task, ("cpu",)))
    assert alone is not None
    assert "graded" not in alone["alternates"]["shifted_products"]
    assert "1.2 times" in render_prose(file)["precision_md"] or "1.3 times" in render_prose(file)["precision_md"]


def test_a_region_prints_its_tolerance(tmp_path):
    assert "have to meet 1e-2" in re.sub(r"\s+", " ", render_prose(held(tmp_path, "based-forward"))["correctness_md"])


def test_figures_in_short():
    figures = {0.00214: "2.1e-3", 0.0996: "0.1", 0.531: "0.53", 3.0: "3", 12.34: "12", 233.0: "230", 25679.0: "26,000",
               7.3e7: "7.3e7", 0.0: "0", math.inf: "infinity"}  # fmt: skip
    assert {value: short(value) for value in figures} == figures
    assert str(Interval([0.003, 0.0011])) == "1.1e-3 to 3.0e-3"
    assert str(Interval([0.0030001, 0.003])) == "3.0e-3"
    assert str(Short(0.4069)) == "0.41"
    assert dict(Errors({"default": [], "timed": [1.0]})).keys() == {"timed"}
