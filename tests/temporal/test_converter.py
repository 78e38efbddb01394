"""What payloads omit, so that workers of older builds can read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crawler_lifecycle.activities.initiation import CreateHistory
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.temporal.converter import TolerantPayloadConverter

CONVERTER = TolerantPayloadConverter()


def sent(value: Any) -> Any:
    [payload] = CONVERTER.to_payloads([value])
    return json.loads(payload.data)


@pytest.mark.parametrize("tags", [[], [',"sites":[]', '"sites":[]']])
def test_a_request_without_sites_is_one_that_older_builds_read(tags: list[str]) -> None:
    request = RunRequest(crawler="services", tags=tags)
    assert not {"sites", "version", "code"} & {*sent(request)}
    assert sent(request)["tags"] == tags
    order = CreateHistory(request, "r", Owner("w", "1"))
    assert "sites" not in sent(order)["request"]
    [payload] = CONVERTER.to_payloads([request])
    assert CONVERTER.from_payloads([payload], [RunRequest]) == [request]


def test_sites_versions_and_the_values_of_others_stay() -> None:
    pinned = RunRequest(crawler="services", version="v1", code="sha256:0")
    assert {**sent(pinned), "version": "v1", "code": "sha256:0"} == sent(pinned)
    assert sent(RunRequest(crawler="services", sites=["shop.example"]))["sites"] == ["shop.example"]
    assert sent({"a": 1, "sites": []}) == {"a": 1, "sites": []}
