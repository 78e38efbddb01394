"""The rows of jobs in the form that starts the built-in manager: one for each job, with a field for
each argument of its crawler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, effective_args
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.web.problems import FieldError, of_error

#: The maximum number of rows. More jobs are given as lines of JSON.
ROWS_MAX = 20
#: The field of an argument: the number of its row, and its name.
_FIELD = re.compile(r"job([1-9]|1[0-9]|20)\.(.+)", re.DOTALL)
_REMOVE = re.compile(r"remove ([1-9][0-9]?)")


def is_field(name: str) -> bool:
    """Return whether this is the field of an argument in a row."""
    return _FIELD.fullmatch(name) is not None


def row_count(given: Mapping[str, str]) -> int:
    """Return the number of rows that the form shows, from 1 to ``ROWS_MAX``."""
    text = given.get("rows", "")
    asked = int(text) if re.fullmatch("[0-9]{1,3}", text) else 1
    return min(max([asked, 1, *args_of_rows(given)]), ROWS_MAX)


def args_of_rows(given: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return the arguments in each row, by its number, without the empty rows."""
    rows: dict[int, dict[str, str]] = {}
    for name, text in given.items():
        found = _FIELD.fullmatch(name)
        if found and text.strip():
            rows.setdefault(int(found[1]), {})[found[2]] = text
    return dict(sorted(rows.items()))


def pressed(given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the form after its button ``show`` was pressed, which adds an empty row
    or removes a row.
    """
    count = row_count(given)
    button = given.get("show", "")
    if button == "add":
        return {**given, "rows": str(min(count + 1, ROWS_MAX))}
    removed = _REMOVE.fullmatch(button)
    if removed is None:
        return dict(given)
    gone = int(removed[1])
    kept: dict[str, str] = {}
    for name, text in given.items():
        found = _FIELD.fullmatch(name)
        number = int(found[1]) if found else 0
        if found is None or number < gone:
            kept[name] = text
        elif number > gone:
            kept[f"job{number - 1}.{found[2]}"] = text
    return {**kept, "rows": str(max(count - 1, 1))}


def mistakes(
    crawler: CrawlerDefinition, common: Mapping[str, str], given: Mapping[str, str]
) -> list[FieldError]:
    """Return the errors in all rows, each with the name of its field.

    ``common`` are the arguments of all jobs, whose own errors are left out.
    """
    errors: list[FieldError] = []
    for number, own in args_of_rows(given).items():
        try:
            effective_args(crawler, {**common, **own})
        except InvalidRequest as error:
            for found in of_error(error).errors:
                name = found.field.removeprefix("args.")
                if name in own or name not in common:
                    errors.append(FieldError(field=f"job{number}.{name}", message=found.message))
    return errors
