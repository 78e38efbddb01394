"""Statistics of items: exact for few values, approximate for many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crawler_lifecycle.domain.item_stats import (
    BATCH_FIELDS,
    FIELD_NAME_MAX,
    FIELDS_MAX,
    FieldStats,
    _batch,
    item_stats,
)


def test_fields_of_items() -> None:
    found = item_stats(
        [{"a": "xy", "b": None}, {"a": "", "b": [1]}, {"a": "xyz", "c": {}}, {"a": "xy"}, 17]
    )
    assert found.items == 5
    assert found.fields == [
        FieldStats("a", 3, 0.6, 2, 2, 3),
        FieldStats("b", 1, 0.2, 1, 3, 3),
        FieldStats("(value)", 1, 0.2, 1, 2, 2),
    ]
    assert item_stats([]).fields == []


@pytest.mark.parametrize("distinct", [1, 256, 2_000, 50_000])
def test_distinct_values(distinct: int) -> None:
    (field,) = item_stats(
        {"url": f"https://example.com/{n % distinct}"} for n in range(50_000)
    ).fields
    assert field.filled == 50_000
    assert abs(field.distinct - distinct) <= (0 if distinct <= 256 else 0.35 * distinct)


def test_fields_without_end_are_counted_and_left_out() -> None:
    found = item_stats([{f"f{n}": n for n in range(5_000)}, {"\x1b" * 300: 1}])
    assert (len(found.fields), found.fields_left_out) == (FIELDS_MAX, 4_801)


def test_values_of_several_kinds_are_the_same_in_each_batch() -> None:
    rows: list[object] = [5, 5.5, 5.0, "5", True, None, "", [], {}, [1], False, "x"]
    found = item_stats([{"a": rows[n % 2]} for n in range(2_000)] + [{"a": row} for row in rows])
    # 5, 5.5, "5", true, [1], false, x.
    assert found.fields == [FieldStats("a", 2_008, 0.998, 7, 1, 5)]


def test_large_items_are_not_kept_together() -> None:
    kept = 0

    def items() -> Iterator[dict[str, str]]:
        nonlocal kept
        for _ in range(200):
            kept += 1024 * 1024
            yield {"a": "x"}

    assert item_stats(items(), lambda: kept).items == 200
    batch = _batch(items(), lambda: kept)
    assert len(batch) == 2


def test_wide_items_are_counted_in_linear_work_and_not_kept_together() -> None:
    """Each name in a batch was once searched for in each of its items."""
    wide = [
        {f"{number}.{field}": field for field in range(BATCH_FIELDS // 2)} for number in range(4)
    ]
    looked_up = 0

    class Counted(dict[str, int]):
        def __contains__(self, name: object) -> bool:
            nonlocal looked_up
            looked_up += 1
            return super().__contains__(name)

    items = [Counted(item) for item in wide]
    found = item_stats(items)
    assert (found.items, len(found.fields)) == (4, FIELDS_MAX)
    assert found.fields_left_out == 2 * BATCH_FIELDS - FIELDS_MAX
    assert looked_up <= FIELDS_MAX * len(items)
    assert len(_batch(iter(items), lambda: 0)) == 2


def test_the_names_of_fields_are_short_where_they_are_kept() -> None:
    long = "x" * (FIELD_NAME_MAX + 1)
    found = item_stats([{long: 1, "a": 1}])
    assert ([field.name for field in found.fields], found.fields_left_out) == (["a"], 1)
