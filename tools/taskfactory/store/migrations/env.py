"""alembic's entry: runs the migrations on the connection that `store.engine` hands over."""

from __future__ import annotations

from alembic import context

from taskfactory.store.schema import METADATA

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA, transactional_ddl=False)
context.run_migrations()
