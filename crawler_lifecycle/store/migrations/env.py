"""Alembic's environment: it uses the connection that ``schema_version.upgrade`` has opened and locked."""

from alembic import context

from crawler_lifecycle.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes columns by copying the table; later migrations may need it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
