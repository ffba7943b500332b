"""The first schema: tasks, sources, runs, jobs, results, and triggers that refuse changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TABLES = ("task", "source", "run", "job", "result")


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "task",
        sa.Column("content_sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("spec_digest", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("readme", sa.Text, nullable=False),
        sa.Column("files", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("content_sha256", name="pk_task"),
    )
    op.create_table(
        "source",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_source"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("taskfactory_version", sa.Text, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
    )
    op.create_table(
        "job",
        sa.Column("id", big, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("task_sha256", sa.String(64), nullable=False),
        sa.Column("source_sha256", sa.String(64), nullable=False),
        sa.Column("submitter", sa.Text, nullable=False),
        sa.Column("sample", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_job_run_id_run"),
        sa.ForeignKeyConstraint(["task_sha256"], ["task.content_sha256"], name="fk_job_task_sha256_task"),
        sa.ForeignKeyConstraint(["source_sha256"], ["source.sha256"], name="fk_job_source_sha256_source"),
        sa.UniqueConstraint("run_id", "ordinal", name="uq_job_run_id"),
    )
    for column in ("task_sha256", "submitter", "source_sha256"):
        op.create_index(f"ix_job_{column}", "job", [column])
    op.create_table(
        "result",
        sa.Column("id", big, autoincrement=True, nullable=False),
        sa.Column("job_id", big, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("record_sha256", sa.String(64), nullable=False),
        sa.Column("printed", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("timed", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Float(53)) for name in ("score", "score_low", "score_high", "reward")),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("tier", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("duration_s", sa.Float(53), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("grader_sha256", sa.String(64), nullable=False),
        sa.Column("conditions", sa.Text, nullable=False),
        sa.Column("stored_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_result"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_result_job_id_job"),
        sa.UniqueConstraint("job_id", "attempt", name="uq_result_job_id"),
        sa.CheckConstraint("attempt > 0", name="ck_result_attempt"),
    )
    _refuse_changes(op.get_bind().dialect.name)


def _refuse_changes(dialect: str) -> None:
    if dialect == "sqlite":
        for table in _TABLES:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION taskfactory_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in _TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION taskfactory_append_only()"
        )


def downgrade() -> None:
    raise NotImplementedError("results are never thrown away; restore a copy of the database instead")
