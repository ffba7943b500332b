"""The tables. `migrations/` creates them; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in a column typed INTEGER

TASK = Table(
    "task",
    METADATA,
    Column("content_sha256", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("spec_digest", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("readme", Text, nullable=False),  # what a solver reads, as Markdown; empty where the task came without
    Column("files", Text, nullable=False),  # JSON object: the hidden task directory, file name -> text
)

SOURCE = Table(
    "source",
    METADATA,
    Column("sha256", String(64), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

RUN = Table(
    "run",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("kind", Text, nullable=False),  # "run" or "regrade"
    Column("started_at", Text, nullable=False),  # ISO 8601, UTC, as all times here: sorts as text in either database
    Column("host", Text, nullable=False),
    Column("taskfactory_version", Text, nullable=False),
    Column("settings", Text, nullable=False),  # JSON object: what the command was asked for
)

JOB = Table(
    "job",
    METADATA,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("run_id", String(32), ForeignKey("run.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("task_sha256", String(64), ForeignKey("task.content_sha256"), nullable=False),
    Column("source_sha256", String(64), ForeignKey("source.sha256"), nullable=False),
    Column("submitter", Text, nullable=False),
    Column("sample", Text, nullable=False),
    UniqueConstraint("run_id", "ordinal"),
)

RESULT = Table(
    "result",
    METADATA,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("job_id", _Id, ForeignKey("job.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("record", Text, nullable=False),  # the grader's private JSON, byte for byte
    Column("record_sha256", String(64), nullable=False),
    Column("printed", Text, nullable=False),  # the last of what the submission printed
    Column("status", Text, nullable=False),  # this and the following are copied out of the record, for queries
    Column("timed", Boolean, nullable=False),
    Column("score", Float(53)),
    Column("score_low", Float(53)),
    Column("score_high", Float(53)),
    Column("reward", Float(53)),
    Column("device", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("duration_s", Float(53), nullable=False),
    Column("host", Text, nullable=False),  # this and the following are the fleet's own observations
    Column("slot", Text, nullable=False),  # the GPU's UUID, or the CPU worker's name
    Column("grader_sha256", String(64), nullable=False),
    Column("conditions", Text, nullable=False),  # JSON object: clocks, temperature, neighbours; see fleet.conditions
    Column("stored_at", Text, nullable=False),
    UniqueConstraint("job_id", "attempt"),
    CheckConstraint("attempt > 0", name="attempt"),
)

INDEXES = (
    Index("ix_job_task_sha256", JOB.c.task_sha256),
    Index("ix_job_submitter", JOB.c.submitter),
    Index("ix_job_source_sha256", JOB.c.source_sha256),
)

APPEND_ONLY = tuple(table.name for table in (TASK, SOURCE, RUN, JOB, RESULT))
"""Triggers refuse to change or delete rows of these."""
