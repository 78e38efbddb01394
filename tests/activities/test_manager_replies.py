"""A process with user code may send anything: requests are answered or refused, replies committed
or refused.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken
from crawler_lifecycle.features.managers.activities.cycles import _Cycle
from crawler_lifecycle.features.managers.domain.manager import (
    AddedJob,
    Decision,
    HookFailed,
    HookReport,
    Job,
    Page,
    PickedJob,
    SourceItem,
)
from crawler_lifecycle.features.managers.ports import ManagerFence
from crawler_lifecycle.features.user_code import calls
from crawler_lifecycle.features.user_code.wire import encode
from tests.activities.test_manager_cycle import Fixture, fixture
from tests.contracts.store.managing import MINE
from tests.support.examples import examples

__all__ = ["fixture"]

#: Possible values in JSON from a pipe.
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["\0", "\ud800", "x" * 5000, "9" * 200, "manager/1/1", "live:9", "ended:"]
)
NUMBERS = st.integers(-3, 3) | st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**300, 0.5, 1e300])
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS | st.sampled_from([float("nan"), float("inf")])
ANYTHING = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)
ASKED = {
    "waiting_jobs": ("state", "after_id", "limit"),
    "live_jobs": ("after_id", "limit"),
    "known_identities": ("identities",),
    "job": ("key",),
    "owned_jobs": ("states", "limit", "all_flows", "spider", "project_id", "after"),
}
#: Valid arguments.
SENSE = {
    "state": "queued",
    "after_id": 0,
    "limit": 10,
    "identities": ["a"],
    "key": "1",
    "states": ["finished"],
}
FEW = settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)


def fence_of(fixture: Fixture) -> ManagerFence:
    row = fixture.row
    return ManagerFence(row.manager_id, row.attempt, MINE.first_run_id, row.generation)


@FEW
@given(st.data())
def test_any_question_is_answered_or_refused(fixture: Fixture, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ASKED)))
    arguments = {one: SENSE[one] for one in ASKED[name] if one in SENSE}
    for one in data.draw(st.lists(st.sampled_from(ASKED[name]), min_size=1, max_size=2)):
        arguments[one] = data.draw(ANYTHING)
    cycle = _Cycle(fixture.activities, fixture.row, fence_of(fixture))
    with suppress(InvalidRequest):
        assert encode({"answer": cycle._answer(name, arguments)})


REPLY = asdict(
    Decision(
        hooked=[HookReport(1, 1, False)],
        failed=[HookFailed(2, 1, "it raised")],
        added=[
            AddedJob(-1, Job("shop", {"page": "7"}), seq=9, retry=1, retry_of="1", not_before=5.0)
        ],
        delayed=[3],
        picked=[PickedJob(4, 3, Job("shop", {"page": "4"}), "k")],
        state={"a": 1},
        stats={"n": 1.0},
        close_reason="enough",
        waiting="nothing",
        again_s=1.0,
    )
)
PAGE = asdict(Page([SourceItem(3, Job("shop", {"page": "9"}))], 3))


def spoilt(data: st.DataObject, reply: Any) -> Any:
    """Return the reply with something else in one or two places."""
    whole = {"": reply}
    for _ in range(data.draw(st.integers(1, 2))):
        place: Any = whole
        key: Any = ""
        while isinstance(place[key], dict | list) and place[key] and data.draw(st.integers(0, 3)):
            place = place[key]
            key = data.draw(
                st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))
            )
        place[key] = data.draw(ANYTHING)
    return whole[""]


@pytest.mark.parametrize("what", ["decision", "page"])
@FEW
@given(st.data())
def test_any_reply_is_committed_or_refused(
    fixture: Fixture, what: str, data: st.DataObject
) -> None:
    if not fixture.row.generation:
        fixture.cycle()
    store, fence = fixture.managers, fence_of(fixture)
    form = {"decision": REPLY, "page": PAGE}[what]
    reply = spoilt(data, json.loads(json.dumps(form)))
    with suppress(InvalidRequest, Overtaken):
        if what == "page":
            store.add_page(fence, calls.page(reply, fixture.row.position))
        else:
            store.commit_decision(fence, calls.decision(reply))
    assert store.get_manager(fence.manager_id) is not None
    assert store.list_jobs(fence.manager_id)
