"""Where results live: an append-only database of records as the grader wrote them, with source, run, host and device.

    task     a task as it was graded: the hidden directory, by the hash of its content
    source   a submission's source, by its hash
    run      one `taskfactory run` or `regrade`: where, when, with which settings
    job      one submission that a run is to grade
    result   one grading of a job; a job has more than one only where the earlier ones were infrastructure errors

SQLite by default, PostgreSQL by URL; the same tables, the same tests. Needs the extra `fleet` (SQLAlchemy, alembic).
"""

from __future__ import annotations

import importlib.util

from taskfactory.errors import InfrastructureError

for _package in ("sqlalchemy", "alembic"):
    if importlib.util.find_spec(_package) is None:
        raise InfrastructureError(f"the store needs {_package}: pip install 'taskfactory[fleet]'")
