"""Alembic's environment, which uses the connection that ``schema_version.upgrade`` has opened and
locked.
"""

from alembic import context

from crawler_lifecycle.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can change a column only by copying the table. Later migrations may need this.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
