"""Has a spec been calibrated, and with what result (TF70x)? Reads certificates; measures nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from taskfactory.calibrate.certificate import certificate_path, read_certificate
from taskfactory.calibrate.quality import NAMES, judge_shapes, judge_work
from taskfactory.checks.report import Report
from taskfactory.errors import UsageError
from taskfactory.findings import Finding
from taskfactory.load import SpecFile

_REQUIRED = ("cpu",)
"""Devices of which a certificate must be there; one from a GPU is judged where it is."""
_OPTIONAL = ("cuda",)
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


def check_certificates(file: SpecFile, *, release: bool = False) -> list[Finding]:
    """What is to be said about a spec's certificates; with `release`, warnings are errors.

    That there is none is said where certificates are kept, and with `release`: a spec that was begun today has none.
    """
    report = Report(file)
    kept = release or certificate_path(file, "cpu").parent.is_dir()
    for device in (*_REQUIRED, *_OPTIONAL):
        path = certificate_path(file, device)
        shown = f"certificates/{path.name}"
        try:
            certificate = read_certificate(path)
        except FileNotFoundError:
            if device in _REQUIRED and kept:
                report.add("TF702", "name", f"there is no {shown}")
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
    return [replace(finding, severity="error") if release else finding for finding in report.findings]
