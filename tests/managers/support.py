"""Small managers for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from crawler_lifecycle.managers import GeneratorCrawlManager
from crawler_lifecycle.managers.testing import Record


def generator(
    items: Iterable[Any] | Callable[[], Iterable[Any]] = (), **members: Any
) -> type[GeneratorCrawlManager]:
    """Return a generator manager that yields these items, with these attributes and methods."""

    def set_parameters_gen(self: GeneratorCrawlManager) -> Iterable[Mapping[str, Any]]:
        yield from items() if callable(items) else items

    given = {
        "name": "crawl",
        "loop_mode": 60,
        "spider": "shops",
        "set_parameters_gen": set_parameters_gen,
    }
    return type("Crawl", (GeneratorCrawlManager,), {**given, **members})


def pages(*numbers: int) -> list[dict[str, Any]]:
    return [{"page": n} for n in numbers]


def order(record: Record) -> list[str]:
    """Return the argument ``page`` of each scheduled job."""
    return [job.spider_args.get("page", "") for job in record.scheduled]


def numbers(record: Record) -> list[str]:
    """Return number and retry of each scheduled job."""
    return [f"{job.seq}.r{job.retry}" if job.retry else str(job.seq) for job in record.scheduled]


def tag(tags: list[str], name: str) -> list[str]:
    """Return the values of the tags with this name."""
    return [one.partition("=")[2] for one in tags if one.startswith(f"{name}=")]
