"""A schema of the future: what a newer build's ``crawlctl db upgrade`` does to a database that this
build uses.

As a pytest plugin (``-p tests.support.future_schema``), every database of a test gets it, so that
the suite of this build runs on the newer schema, as its workers would during a deployment.
"""

from __future__ import annotations

import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from crawler_lifecycle.store.migrations import schema_version as schema
from crawler_lifecycle.store.migrations.schema_version import head_version, upgrade

MIGRATIONS = Path(schema.__file__).parent
VERSION = "0999"
_TEXT = """
    import sqlalchemy as sa
    from alembic import op

    revision = "{version}"
    down_revision, branch_labels, depends_on = "{before}", None, None
    WORKS_FROM = "{works_from}"
    FINGERPRINT = "of the future"


    def upgrade():
"""
#: A migration that only adds: nullable columns, a table, an index.
_ADDS = """
        op.add_column("run_history", sa.Column("future", sa.String(20)))
        op.add_column("task_history", sa.Column("future", sa.BigInteger))
        op.create_table("future", sa.Column("id", sa.Integer, primary_key=True))
        op.create_index("ix_run_history_future", "run_history", ["future"])
"""
_NOTHING = """
        pass
"""


def upgrade_by_a_newer_build(url: str, works_from: str, before: str | None = None) -> None:
    """Bring the database to schema 0999, which serves builds from ``works_from`` on.

    With ``before``, schema 0998 comes first, which serves builds from that one on.
    """
    steps = (
        [(VERSION, works_from, _ADDS)]
        if before is None
        else [("0998", before, _NOTHING), (VERSION, works_from, _ADDS)]
    )
    with tempfile.TemporaryDirectory() as folder:
        migrations = Path(folder, "migrations")
        shutil.copytree(MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
        last = head_version()
        for version, served, does in steps:
            text = textwrap.dedent(
                _TEXT.format(version=version, before=last, works_from=served) + does.strip("\n")
            )
            (migrations / "versions" / f"{version}_future.py").write_text(text)
            last = version
        with _build_with(migrations):
            upgrade(url)


@contextmanager
def _build_with(migrations: Path) -> Iterator[None]:
    def forget() -> None:
        for found in (schema._migrations, schema.known_versions):
            found.cache_clear()

    try:
        with mock.patch.object(schema, "_MIGRATIONS", migrations):
            forget()
            yield
    finally:
        forget()


def pytest_configure(config: pytest.Config) -> None:
    """Give every database that a test makes the future schema."""

    def both(url: str) -> None:
        upgrade(url)
        upgrade_by_a_newer_build(url, head_version())

    config.add_cleanup(_patched(both).stop)


def _patched(both: object) -> mock._patch[object]:
    patch = mock.patch.object(schema, "upgrade", both)
    patch.start()
    return patch
