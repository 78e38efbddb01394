"""A converter from the loose HTML of the API models to HTML that is valid, closed and safe."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser

Linker = Callable[[str], "str | None"]
"""Answers the address of the page about an operation, or None when there is no such page."""

_INLINE = {
    "code": "code",
    "b": "b",
    "i": "i",
    "em": "em",
    "strong": "strong",
    "u": "em",
    "replaceable": "var",
}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_BLOCKS = {"p", "ul", "ol", "dl", "pre"} | _HEADINGS
_BOXES = {"note": "note", "important": "important"}
_TRANSPARENT = {"xhtml", "zonbook", "html", "body", "div", "span", "section", "para", "title"}
_SKIPPED = {"fullname", "script", "style"}
_FLOW = {"div", "li", "dd"}  # our elements that may contain blocks
# The elements that must contain a text that is directly in a list.
_LISTS = {"ul": "li", "ol": "li", "dl": "dd"}
_PARENTS = {"li": ("ul", "ol"), "dt": ("dl",), "dd": ("dl",)}
_INLINE_OUT = {*_INLINE.values(), "a"}

_SPACES = re.compile(r"\s+")
_EMPTY = re.compile(r"<(p|li|b|i|em|strong|code)>\s*</\1>")


class _Cleaner(HTMLParser):
    """Writes known elements in a valid nesting and everything else as text.

    Links lead to pages of this site or are removed, because a demonstration must not send a crawler
    to the internet.
    """

    def __init__(self, link: Linker) -> None:
        super().__init__(convert_charrefs=True)
        self._link = link
        self._out: list[str] = []
        self._stack: list[str] = []
        self._skipping = 0
        # The position of the open link, and its target.
        self._anchor: tuple[int, str] | None = None

    def result(self) -> str:
        """Return everything that has been written so far, with all elements closed."""
        self.close()
        self._pop_to(0)
        return _EMPTY.sub("", "".join(self._out)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipping += 1
        elif self._skipping or tag in _TRANSPARENT:
            return
        elif tag == "a":
            self._close_inline("a")
            self._phrasing()
            self._stack.append("a")
            self._anchor = (len(self._out), dict(attrs).get("href") or "")
        elif tag in _INLINE:
            self._phrasing()
            self._push(_INLINE[tag])
        elif tag == "br":
            self._phrasing()
            self._out.append("<br>")
        elif tag in _PARENTS:
            self._item(tag)
        elif tag in _BLOCKS or tag in _BOXES:
            self._flow()
            if tag in _BOXES:
                self._push("div", f' class="{_BOXES[tag]}"')
            else:
                self._push("h3" if tag in _HEADINGS else tag)
        else:  # a placeholder such as <region>, which is meant as text
            self.handle_data(f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skipping = max(0, self._skipping - 1)
        elif self._skipping:
            return
        elif tag in _INLINE or tag == "a":
            self._close_inline(_INLINE.get(tag, tag))
        else:
            printed = "div" if tag in _BOXES else "h3" if tag in _HEADINGS else tag
            if printed in self._stack:
                self._pop_to(len(self._stack) - 1 - self._stack[::-1].index(printed))

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        if not data.strip() and (not self._stack or self._stack[-1] in _LISTS):
            return
        self._phrasing()
        inside_pre = "pre" in self._stack
        self._out.append(escape(data if inside_pre else _SPACES.sub(" ", data), quote=False))

    def _push(self, tag: str, attributes: str = "") -> None:
        self._stack.append(tag)
        self._out.append(f"<{tag}{attributes}>")

    def _pop_to(self, depth: int) -> None:
        while len(self._stack) > depth:
            tag = self._stack.pop()
            if tag == "a":
                self._close_anchor()
            else:
                self._out.append(f"</{tag}>")

    def _close_anchor(self) -> None:
        assert self._anchor is not None
        start, href = self._anchor
        self._anchor = None
        inner = "".join(self._out[start:])
        named = re.search(r"/API_(\w+)\.html", href)
        target = self._link(named[1]) if named else None
        target = target or self._link(text_of(inner))
        if target and inner.strip():
            self._out[start:] = [f'<a href="{escape(target)}">', inner, "</a>"]

    def _close_inline(self, tag: str) -> None:
        for depth in range(len(self._stack) - 1, -1, -1):
            if self._stack[depth] not in _INLINE_OUT:
                return
            if self._stack[depth] == tag:
                self._pop_to(depth)
                return

    def _phrasing(self) -> None:
        """Make sure that text is allowed here."""
        if not self._stack:
            self._push("p")
        elif self._stack[-1] in _LISTS:
            self._push(_LISTS[self._stack[-1]])

    def _flow(self) -> None:
        """Make sure that a block is allowed here."""
        while self._stack and self._stack[-1] not in _FLOW and self._stack[-1] not in _LISTS:
            self._pop_to(len(self._stack) - 1)
        if self._stack and self._stack[-1] in _LISTS:
            self._push(_LISTS[self._stack[-1]])

    def _item(self, tag: str) -> None:
        """Open a list item in the nearest matching list, or in a new list if there is none."""
        for depth in range(len(self._stack) - 1, -1, -1):
            if self._stack[depth] in _PARENTS[tag]:
                self._pop_to(depth + 1)
                break
        else:
            self._flow()
            self._push(_PARENTS[tag][0])
        self._push(tag)


class _Text(HTMLParser):
    """Collects the text of HTML."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in _SKIPPED

    def handle_endtag(self, tag: str) -> None:
        self._skipping -= tag in _SKIPPED and self._skipping > 0

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(data)


def clean(html: str, link: Linker) -> str:
    """Return valid HTML with the meaning of the given loose HTML. References to operations become
    links.
    """
    if not html:
        return ""
    cleaner = _Cleaner(link)
    cleaner.feed(html)
    return cleaner.result()


def text_of(html: str) -> str:
    """Return the plain text of HTML, with collapsed white space."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    return _SPACES.sub(" ", "".join(parser.parts)).strip()


def first_sentence(html: str, limit: int = 160) -> str:
    """Return the beginning of a documentation text, for lists."""
    text = text_of(html[: 20 * limit])
    sentence = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    return sentence if len(sentence) <= limit else sentence[: limit - 1].rsplit(" ", 1)[0] + "…"
