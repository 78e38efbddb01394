"""Limits of what is read of one page, and the words in it.

Parsers take up to 40 bytes of memory for a byte of tags, and time that grows with the square of one tag's attributes
(measured: 9 s for 300 KB of them), in which a crawl hears no stop. So a page is counted before it is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lxml import etree  # type: ignore[import-untyped]

#: Tags of a page, closing ones included. The largest pages that people write have some ten thousand.
TAGS_MAX = 200_000
#: Attributes of one tag, and of all tags together.
ATTRIBUTES_MAX, ALL_ATTRIBUTES_MAX = 1_000, 500_000

_TAG = re.compile(r"<[a-zA-Z][^\s/>]*")
_ATTRIBUTE = re.compile(r"""[\s/]+[^\s/>][^\s/>=]*(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]*))?""")
_WORD = re.compile(r"\S+")
_TEXTS = etree.XPath(
    "//body//text()[not(ancestor::script or ancestor::style or ancestor::template or ancestor::noscript)]",
    smart_strings=False,
)


def too_much(text: str) -> str | None:
    """Return why a page is not parsed: it has too many tags or attributes; ``None`` for one that may be parsed."""
    text = text.replace("\0", "")  # as the parser does
    tags = text.count("<")
    if tags > TAGS_MAX:
        return f"too large to be read: {tags} tags, at most {TAGS_MAX}"
    total = 0
    for tag in _TAG.finditer(text):
        found, place = 0, tag.end()
        while attribute := _ATTRIBUTE.match(text, place):
            found, place = found + 1, attribute.end()
            if found > ATTRIBUTES_MAX:
                return f"too large to be read: a tag of more than {ATTRIBUTES_MAX} attributes"
        total += found
        if total > ALL_ATTRIBUTES_MAX:
            return f"too large to be read: more than {ALL_ATTRIBUTES_MAX} attributes"
    return None


def lines_of(root: Any) -> Iterator[str]:
    """The texts of a page that people see, a line each."""
    for text in _TEXTS(root):
        line = " ".join(text.split())
        if line:
            yield line


def words_of(root: Any) -> int:
    """Return the number of words people see. Counted one by one: a list of them takes more memory than the page."""
    return sum(1 for text in _TEXTS(root) for _ in _WORD.finditer(text))
