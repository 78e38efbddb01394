"""Scrapy crawls in an environment like that of the crawlers' image, which has Scrapy and nothing of
this service.
"""

from __future__ import annotations

from pathlib import Path


def without_pydantic(folder: Path) -> str:
    """Return a folder for ``PYTHONPATH`` that hides pydantic, as in the image.

    Otherwise Scrapy's item adapter imports it twice, which takes a sixth of a crawl's imports.
    """
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "pydantic.py").write_text("raise ImportError('as in images/crawler')\n")
    return str(hidden)
