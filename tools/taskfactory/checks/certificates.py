"""Has a spec been calibrated, and with what result (TF70x)? Reads certificates; measures nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from taskfactory.calibrate.certificate import DEVICES, certificate_path, read_certificate
from taskfactory.calibrate.complete import lacking
from taskfactory.calibrate.quality import NAMES, judge_shapes, judge_work
from taskfactory.checks.report import Report
from taskfactory.errors import UsageError
from taskfactory.findings import Finding
from taskfactory.load import SpecFile

REQUIRED = ("cpu",)
"""Devices of which a certificate must be there, unless others are named; one from another is judged where it is."""
_NAME = re.compile(r"(mutants|precision)\.\w+\.\w+(\.\w+)?|ablations\.(?P<ablation>\w+)")


def check_survivors(report: Report) -> None:
    """Explanations are of something, and explain."""
    spec = report.file.spec
    for name, reason in spec.survivors.items():
        match = _NAME.fullmatch(name)
        ablation = match["ablation"] if match else None
        if name not in NAMES and (match is None or (ablation is not None and ablation not in spec.ablations)):
            report.add("TF701", f"survivors.{name}", f"{name!r} names nothing that a calibration measures")
        elif len(reason.split()) < 4:
            report.add("TF701", f"survivors.{name}", f"{name} is not explained by {reason!r}")


def check_certificates(file: SpecFile, *, release: bool = False, devices: Sequence[str] = REQUIRED) -> list[Finding]:
    """What is to be said about a spec's certificates; with `release`, warnings are errors.

    That there is none is said where certificates are kept, and with `release`: a spec that was begun today has none.
    Of a device that is not among `devices`, a release only warns that its certificate is not there.

    Args:
        file: a loaded spec.
        release: whether the task is about to be given away.
        devices: devices, "cpu" or "cuda", without whose certificate a release fails.
    """
    report = Report(file)
    kept = release or certificate_path(file, "cpu").parent.is_dir()
    for device in DEVICES:
        path = certificate_path(file, device)
        shown = f"certificates/{path.name}"
        try:
            certificate = read_certificate(path)
        except FileNotFoundError:
            if device in devices and kept:
                report.add("TF702", "name", f"there is no {shown}")
            elif release:
                report.add("TF708", "name", f"there is no {shown}: nothing was measured there")
            continue
        except (OSError, UsageError) as error:
            report.add("TF705", "name", f"{error}")
            continue
        if certificate.stale(file.spec):
            report.add("TF703", "name", f"{shown} was made of another state of the spec")
            continue
        codes = dict.fromkeys(judge_work(certificate.data, file.spec.survivors)[0], ("TF706", "flops_src"))
        codes |= dict.fromkeys(judge_shapes(certificate.data, file.spec.survivors)[0], ("TF707", "grader_shapes"))
        for problem in certificate.verdict(file.spec).problems:
            code, field = codes.get(problem, ("TF704", "tol"))
            report.add(code, field, f"{problem} ({device})")
        for lack in lacking(certificate.data, file.spec):
            report.add("TF709", "name", f"{shown}: {lack}")
    return [replace(f, severity="error") if release and f.code != "TF708" else f for f in report.findings]
