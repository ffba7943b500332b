"""A store as pages: leaderboards, a page for each grading, task and submitter; static, or served while a run goes on.

    store → entries → boards (what may be ranked together, ties within noise) → pages

By default a page shows the public form of a result: no graded shape, no seed, no coordinate.
"""

from __future__ import annotations
