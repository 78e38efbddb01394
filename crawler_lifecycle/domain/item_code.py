"""The code that made an item, as two more fields of the item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .code import Code
from .item_export import PAUSE, fields_of

#: The names of the fields: the digest and the version of the task that wrote the item. Both are
#: null if they are not known.
CODE = "_code"
VERSION = "_version"


def code_groups(codes: Mapping[str, Code]) -> list[dict[str, Any]]:
    """Return the codes of folders as JSON, in which each code has a list of its folders."""
    folders: dict[Code, list[str]] = {}
    for folder, code in codes.items():
        folders.setdefault(code, []).append(folder)
    return [
        {"digest": code.digest, "version": code.version, "folders": found}
        for code, found in folders.items()
    ]


def codes_by_folder(groups: Iterable[Mapping[str, Any]]) -> dict[str, Code]:
    """Return the codes by folder again, from the JSON of ``code_groups``."""
    return {
        folder: Code(group["digest"], group["version"])
        for group in groups
        for folder in group["folders"]
    }


def with_code(
    items: Iterable[Any], codes: Mapping[str, Code], name: Callable[[], str]
) -> Iterator[Any]:
    """Yield the items with the fields of their code first.

    ``codes`` contains the code of each task by the folder of its files (``names.files_prefix``),
    and ``name`` returns the name of the file that has the item that was yielded last. Fields of the
    same name are replaced, so that no crawler can forge its code. An item that is not an object
    becomes one.
    """
    for item in items:
        if item is PAUSE:
            yield item
            continue
        code = codes.get(name().partition("/")[0], Code())
        found = {CODE: code.digest, VERSION: code.version}
        found |= {field: value for field, value in fields_of(item).items() if field not in found}
        if isinstance(item, dict):  # its class can say more about it, such as repeated fields
            item.clear()
            item.update(found)
            yield item
        else:
            yield found
