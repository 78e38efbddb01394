"""Size limits for a page, and the page's visible text.

A parser may need 40 bytes of memory for each byte of tags. The parsing time grows with the square
of the number of attributes in one tag (measured: 9 s for 300 KB). During that time a crawl cannot
react to a stop. Therefore a page's tags and attributes are counted before the page is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lxml import etree  # type: ignore[import-untyped]

#: The maximum number of tags in a page, including closing tags. The largest hand-written pages have
#: about ten thousand.
TAGS_MAX = 200_000
#: The maximum number of attributes in one tag, and in all tags together.
ATTRIBUTES_MAX = 1_000
ALL_ATTRIBUTES_MAX = 500_000

_TAG = re.compile(r"<[a-zA-Z][^\s/>]*")
_ATTRIBUTE = re.compile(r"""[\s/]+[^\s/>][^\s/>=]*(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]*))?""")
_WORD = re.compile(r"\S+")
_TEXTS = etree.XPath(
    "//body//text()[not(ancestor::script or ancestor::style or ancestor::template or "
    "ancestor::noscript)]",
    smart_strings=False,
)


def too_much(text: str) -> str | None:
    """Return the reason why the page has too many tags or attributes to be parsed; ``None`` if it
    can be parsed.
    """
    text = text.replace("\0", "")  # the parser removes these characters, too
    tags = text.count("<")
    if tags > TAGS_MAX:
        return f"too large to be read: {tags} tags, at most {TAGS_MAX}"
    total = 0
    for tag in _TAG.finditer(text):
        found = 0
        position = tag.end()
        while attribute := _ATTRIBUTE.match(text, position):
            found, position = found + 1, attribute.end()
            if found > ATTRIBUTES_MAX:
                return f"too large to be read: a tag with more than {ATTRIBUTES_MAX} attributes"
        total += found
        if total > ALL_ATTRIBUTES_MAX:
            return f"too large to be read: more than {ALL_ATTRIBUTES_MAX} attributes"
    return None


def lines_of(root: Any) -> Iterator[str]:
    """Yield the visible pieces of text on a page, each as one line."""
    for text in _TEXTS(root):
        line = " ".join(text.split())
        if line:
            yield line


def words_of(root: Any) -> int:
    """Return the number of visible words.

    No list is built, because it would need more memory than the page.
    """
    return sum(1 for text in _TEXTS(root) for _ in _WORD.finditer(text))
