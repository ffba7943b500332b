"""Confinement of the untrusted worker: Landlock, seccomp, no capabilities, limits, and a probe that tries them.

Standard library only, Linux only, relative imports only. `docs/security.md` explains each decision.

    worker:      report = enter(scratch, readable, devices, keep=[...]);  start up;  report = seal();  import submission
    supervisor:  harden_trusted(subreaper=True);  observed = probe_worker(...);  observed.tier
"""

from __future__ import annotations

from .bwrap import bwrap_argv, bwrap_works
from .confinement import enter, harden_trusted, resemble_new, seal
from .limits import ControlGroup, Limits, control_group
from .policy import (
    interpreter_readable,
    nvidia_devices,
    nvidia_minor,
    prepare_scratch,
    remove_scratch,
    worker_environment,
)
from .probe import Observed, probe_worker
from .report import TIERS, ConfinementError, Report, at_least, tier

__all__ = [
    "TIERS",
    "ConfinementError",
    "ControlGroup",
    "Limits",
    "Observed",
    "Report",
    "at_least",
    "bwrap_argv",
    "bwrap_works",
    "control_group",
    "enter",
    "harden_trusted",
    "interpreter_readable",
    "nvidia_devices",
    "nvidia_minor",
    "prepare_scratch",
    "probe_worker",
    "remove_scratch",
    "resemble_new",
    "seal",
    "tier",
    "worker_environment",
]
