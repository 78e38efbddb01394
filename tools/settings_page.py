"""``python -m tools.settings_page docs/settings.md`` writes the default and meaning of each
setting into the page.

The page determines the sections and the order of the settings. A setting has a line that begins
with ``- `LIFECYCLE_…` ``. The rest of this line comes from ``settings.py``: the default, *secret*,
and the docstring below the field.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from crawler_lifecycle import settings
from crawler_lifecycle.settings import PREFIX, Settings

#: A line about a setting, with its variable and its present default.
LINE = re.compile(r"- `(LIFECYCLE_\w+)`(?: \((.*?)\))?(?::.*)?")


def described(text: str) -> str:
    """Return the page with the present default and meaning of each setting.

    Raises ``ValueError`` for a setting that is missing, repeated, unknown, or without a meaning.
    """
    wanted, lines = dict(leaves(Settings, PREFIX, meanings())), []
    for line in text.splitlines(keepends=True):
        if found := LINE.fullmatch(line.rstrip("\n")):
            if (setting := wanted.pop(found[1], None)) is None:
                raise ValueError(f"{found[1]} is not a setting, or is on the page twice")
            line = f"- `{found[1]}`{_default(setting[0], found[2])}: {setting[1]}\n"
        lines.append(line)
    if wanted:
        raise ValueError(f"the page has no line for {', '.join(wanted)}")
    return "".join(lines)


def meanings() -> Mapping[tuple[str, str], str]:
    """Return the docstring below each field, in one line, by class and field."""
    found = {}
    for part in ast.parse(inspect.getsource(settings)).body:
        body = part.body if isinstance(part, ast.ClassDef) else []
        for field, below in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[part.name, ast.unparse(field.target)] = " ".join(
                    str(below.value.value).split()
                )
    return found


def leaves(
    model: type[BaseModel], prefix: str, known: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, tuple[FieldInfo, str]]]:
    """Yield each variable with its field and meaning.

    If several settings share a section class, the docstring of the field in ``Settings`` counts.
    """
    for name, field in model.model_fields.items():
        kind, said = field.annotation, known.get((model.__name__, name))
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inner = (
                known
                if said is None
                else {(kind.__name__, inside): said for inside in kind.model_fields}
            )
            yield from leaves(kind, f"{prefix}{name.upper()}__", inner)
        elif said is None:
            raise ValueError(f"{model.__name__}.{name}: write its meaning below it")
        else:
            yield prefix + name.upper(), (field, ("*secret*: " if _is_secret(field) else "") + said)


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in getattr(field.annotation, "__args__", ())


def _default(field: FieldInfo, written: str | None) -> str:
    """Return the default in brackets.

    Defaults that are computed at the start of a process are written on the page by hand.
    """
    value = field.default
    if field.default_factory is list or field.default_factory is dict:
        return f" (`{field.default_factory()}`)"
    if value is None or (value is PydanticUndefined and written is None):
        return ""
    if value is PydanticUndefined:
        return f" ({written})"
    if isinstance(value, bool):
        return f" (`{str(value).lower()}`)"
    return f" ({value:g})" if isinstance(value, int | float) else f" (`{value}`)"


def main(page: str) -> int:
    """Write the page, and return the exit code."""
    file = Path(page)
    file.write_text(described(file.read_text()))
    print(f"wrote {file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2] or ["docs/settings.md"]))
