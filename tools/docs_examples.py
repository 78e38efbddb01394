"""An extension of griffe for `make site`: it fences the examples in docstrings as code, because
Markdown would read them as quotations.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)


class Examples(Extension):
    """Fences the examples of a docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\n```pycon\n\1\n```\n", obj.docstring.value)
