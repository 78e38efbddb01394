"""Settings for all tests: an example of Hypothesis may take long on a slow machine."""

from __future__ import annotations

import functools
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.databases import make_databases_cheap
from tests.support.examples import load_profile
from tests.support.servers import SERVERS, mariadb

__all__ = ["mariadb"]

TESTS = Path(__file__).parent
CONTRACT = TESTS / "contracts/store"
#: The tests of `make test-more`, and the folders that other commands run completely.
MORE = re.findall("^MORE := (.*)$", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)[
    0
].split()
READ = [
    TESTS.parent / one
    for one in (*MORE, "tests/e2e", "tests/dev", "tests/kubernetes", "tests/ui", "tests/soak")
]
#: Set by pytest itself, again for each part of a test.
CURRENT = "PYTEST_CURRENT_TEST"

load_profile()
# Most tests are about the end of a task. Tests of what follows choose a policy of retries.
os.environ.setdefault("LIFECYCLE_RETRIES", '{"max": 0}')
make_databases_cheap()
# Nothing becomes garbage during collection, and the collector would search 10,000 tests again and
# again.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """If no test with a database server is selected, no server is started."""
    if "not servers" in config.option.markexpr:
        servers.DATABASES = servers.DATABASES[:1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything that needs a database server with ``servers``.

    The contract of the store runs on MariaDB, and on MySQL before a release; tests of the databases
    themselves run on both.
    """
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        named = {
            *getattr(item, "fixturenames", ()),
            *(value for value in values if isinstance(value, str)),
        }
        if named & set(SERVERS):
            item.add_marker(pytest.mark.servers)
        if "mysql" in named and item.path.is_relative_to(CONTRACT):
            item.add_marker(pytest.mark.slow)
        more = [name for name in ("troubles", "servers") if item.get_closest_marker(name)]
        if more and not item.get_closest_marker("slow") and not _is_read(item.path):
            raise pytest.UsageError(
                f"{item.nodeid} is {more[0]}: name its file or folder in MORE of the Makefile"
            )


@functools.cache
def _is_read(file: Path) -> bool:
    """Return whether a command selects it that runs what `make test` does not."""
    return any(map(file.is_relative_to, READ))


def pytest_collection_finish() -> None:
    """Exclude existing objects from garbage collection, and collect less often: reference cycles
    are rare, and collecting at the usual pace takes a twentieth of the time of tests with
    databases.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Restore environment and umask, which entry points change when a test calls them in this
    process.
    """
    environment, mask = os.environ.copy(), os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)
    environment[CURRENT] = os.environ[CURRENT]
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
