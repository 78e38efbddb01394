"""Scrapy crawls in an environment like that of the crawlers' image, which has Scrapy and nothing of
this service.
"""

from __future__ import annotations

from pathlib import Path


def without_pydantic(folder: Path) -> str:
    """For ``PYTHONPATH``: pydantic is not installed there, as in the image.

    Where it is, Scrapy's item adapter imports it twice, which takes a sixth of the imports of a
    crawl.
    """
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "pydantic.py").write_text("raise ImportError('as in images/crawler')\n")
    return str(hidden)
