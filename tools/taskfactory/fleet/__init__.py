"""Grading hundreds of submissions unattended: a manifest becomes a run of jobs, executors grade, the store keeps all.

    manifest + tasks  →  plan  →  driver  ⇄  executor (local pool, or Ray)  →  worker  →  the grader, unchanged

The driver alone writes to the store. A worker grades one submission at a time, holds its GPU's lock while it
does, and leaves the result in a file of the run's spool, so that a result exists before anyone is told of it.
"""

from __future__ import annotations
