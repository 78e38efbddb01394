"""The code of items as fields of the items."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.item_code import (
    CODE,
    VERSION,
    code_groups,
    codes_by_folder,
    with_code,
)
from crawler_lifecycle.domain.item_export import PAUSE, as_csv
from crawler_lifecycle.domain.item_table import DIGITS, item_table

FOLDERS = ("task-0", "task-0-attempt-2", "task-1")
CODES = {
    "task-0": Code("sha256:" + "a" * 64, "v1"),
    "task-0-attempt-2": Code("sha256:" + "b" * 64),
}
VALUES = st.none() | st.integers() | st.text(max_size=3)
ITEMS = VALUES | st.dictionaries(st.sampled_from([CODE, VERSION, "a", "b"]), VALUES)


@given(st.lists(st.tuples(st.sampled_from(FOLDERS), ITEMS | st.just(PAUSE))))
def test_each_item_has_the_code_of_its_folder_first(rows: list[tuple[str, Any]]) -> None:
    given_items = copy.deepcopy([item for _, item in rows if item is not PAUSE])
    name = ""

    def read() -> Any:
        nonlocal name
        for folder, item in rows:
            name = f"{folder}/items.jsonl"
            yield item

    found = [*with_code(read(), CODES, lambda: name)]
    assert [item is PAUSE for item in found] == [item is PAUSE for _, item in rows]
    coded = [item for item in found if item is not PAUSE]
    wanted = [CODES.get(place, Code()) for place, item in rows if item is not PAUSE]
    for item, before, code in zip(coded, given_items, wanted, strict=True):
        assert [*item][:2] == [CODE, VERSION]
        assert (item[CODE], item[VERSION]) == (code.digest, code.version), "whatever it said itself"
        fields = before if isinstance(before, dict) else {"(value)": before}
        for name in (CODE, VERSION):
            fields.pop(name, None)
        assert {name: item[name] for name in [*item][2:]} == fields


@given(st.dictionaries(st.text(), st.builds(Code, st.text(), st.none() | st.text())))
def test_codes_are_sent_once_each(codes: dict[str, Code]) -> None:
    groups = json.loads(json.dumps(code_groups(codes)))
    assert codes_by_folder(groups) == codes
    assert len(groups) == len(set(codes.values()))


def test_the_columns_of_the_code_are_never_left_out() -> None:
    item = {f"field {number}": number for number in range(2_000)}
    head = b"".join(as_csv(with_code([item], CODES, lambda: "task-0/items.csv")))
    assert head.decode().startswith(f"{CODE},{VERSION},field 0,")


def test_what_the_reader_knows_about_an_item_stays() -> None:
    item = DIGITS.decode('{"a": 1, "a": 2}')
    table = item_table(with_code([item], CODES, lambda: "task-0/items.jsonl"), 0, 9)
    assert table.rows == [[CODES["task-0"].digest, "v1", "2"]]
    assert table.notes == ["some items contain a field twice; the last value is shown"]
    assert json.loads(json.dumps(item))[VERSION] == "v1"
