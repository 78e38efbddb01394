"""Creating, changing and controlling schedules."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import respx

from tests.cli.cli_answers import AHEAD, DUE, SCHEDULE
from tests.cli.cli_support import Crawlctl

AT = "/v1/schedules/nightly"
SHOWN = SCHEDULE | AHEAD | {"note": None}


def body(route: respx.Route) -> Any:
    return json.loads(route.calls.last.request.content)


def test_a_schedule_is_made_of_options_or_of_a_file(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    put = gateway.put(AT).respond(json=SHOWN | {"note": "It is recorded."})
    words = (
        "--cron",
        "30 2 * * *",
        "--time-zone",
        "Europe/Berlin",
        "--exclude",
        "2026-12-24",
        "--by",
        "ann",
    )
    result = crawlctl(
        *(
            "schedule",
            "create",
            "nightly",
            "--crawler",
            "operations",
            "-a",
            "letters=a-f",
            "--project",
            "shop-a",
        ),
        *words,
    )
    assert (result.code, "It is recorded." in result.err) == (0, True)
    assert "next: crawlctl schedule firings nightly" in result.err
    assert body(put) == {
        "run": {"crawler": "operations", "args": {"letters": "a-f"}},
        "cron": "30 2 * * *", "every_s": None, "offset_s": 0,
        "time_zone": "Europe/Berlin", "excluded": ["2026-12-24"], "requested_by": "ann", "project": "shop-a",
    }  # fmt: skip
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"graph": {"steps": []}, "cron": "0 0 * * *"}))
    assert (
        crawlctl(
            "schedule", "create", "nightly", "--file", str(file), "--every-s", "60", "--by", "ann"
        ).code
        == 0
    )
    assert body(put) == {"graph": {"steps": []}, "cron": None, "every_s": 60, "requested_by": "ann"}


def test_an_update_lays_its_options_over_what_is_there(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get(AT).respond(json=SHOWN)
    put = gateway.put(AT).respond(json=SHOWN)
    assert (
        crawlctl(
            "schedule",
            "update",
            "nightly",
            "--jitter-s",
            "0",
            "--end-at",
            "2026-12-01",
            "--by",
            "ann",
        ).code
        == 0
    )
    end = "2026-12-01T00:00:00Z"
    assert body(put) == {
        **SCHEDULE["definition"],
        "jitter_s": 0,
        "end_at": end,
        "requested_by": "ann",
    }


def test_a_window_is_told_in_words_or_times(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    asked = gateway.post(f"{AT}/backfill").respond(202, json={"firings": [DUE], "note": None})
    assert crawlctl(
        "schedule", "backfill", "nightly", "--after", "3d", "--by", "ann", "-o", "name"
    ).out.strip()
    assert "until" not in body(asked), "the gateway's clock says what lies ahead"
    window = ("--after", "3d", "--until", "0h")
    assert crawlctl(
        "schedule", "backfill", "nightly", *window, "--by", "ann", "-o", "name"
    ).out.strip()
    sent = body(asked)
    assert datetime.fromisoformat(sent["until"]) - datetime.fromisoformat(
        sent["after"]
    ) == timedelta(days=3)
    triggered = gateway.post(f"{AT}/trigger").respond(202, json={"firings": [DUE], "note": None})
    assert crawlctl("schedule", "trigger", "nightly", "--by", "ann").code == 0
    assert body(triggered) == {"requested_by": "ann"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "nightly"), "give either --crawler or --file"),
        (("create", "nightly", "--file", "nowhere.json"), "cannot be read"),
        (("create", "nightly", "--file", "/dev/zero"), "is larger than 256 MiB"),
        (("update", "nightly"), "nothing to change"),
        (("update", "nightly", "--start-at", "tomorrow"), "--start-at 'tomorrow' is not a time"),
        (("update", "nightly", "--end-at", "2h"), "give a time such as 2026-11-20"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    crawlctl: Crawlctl, words: tuple[str, ...], says: str
) -> None:
    result = crawlctl("schedule", *words)
    assert (result.code, says in result.err) == (2, True)


def test_names_that_are_wrong_lead_to_the_list_that_has_the_right_ones(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    for noun in ("schedule", "webhook"):
        gateway.get(f"/v1/{noun}s/nihgtly").respond(
            404, json={"code": f"{noun}_not_found", "detail": "it is not there"}
        )
        result = crawlctl(noun, "describe", "nihgtly")
        assert (result.code, f"next: crawlctl {noun} list" in result.err) == (3, True), result.err
