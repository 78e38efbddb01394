"""``crawlctl apply`` and the verbs of entries, against the real API of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from fastapi.testclient import TestClient

from crawler_lifecycle.cli import main
from tests.cli.cli_support import GATEWAY, Crawlctl, Result

FILES = {
    "crawlers.yaml": """
- name: bookshop
  image: registry/shop:1
  pool: books
  args: {shelf: {default: "a"}}
- name: fairs
  image: registry/fairs:1
""",
    "more/rest.yml": """
pools:
- name: books
  max: 3
  weight: 2
sites:
- site: shop.example
  requests_per_s: 2
  not: 1-10
schedules:
- name: nightly
  run: {crawler: bookshop, args: {shelf: "b"}}
  cron: "30 2 * * *"
  start_at: 2026-12-01T00:00:00Z
---
webhooks:
- name: team
  url: https://hooks.slack.com/services/T/B/secret
  kind: slack
- name: feed
  url: https://feed.example/
  secrets: [env:CRAWL_HOOK]
  events: [run.ended]
""",
}


@dataclass
class Relay:
    """Passes requests on to the gateway, until it has passed on this number of changes."""

    client: TestClient
    changes: list[str] = field(default_factory=list)
    most: int = 1000

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            if len(self.changes) == self.most:
                raise httpx.ConnectError("killed")
            self.changes.append(f"{request.method} {request.url.path.removeprefix('/v1/')}")
        path = request.url.raw_path.decode()
        headers = {"Content-Type": "application/json"}
        found = self.client.request(request.method, path, content=request.content, headers=headers)
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)


@pytest.fixture
def relay(client: TestClient) -> Iterator[Relay]:
    with respx.mock(base_url=GATEWAY, assert_all_called=False) as router:
        relay = Relay(client)
        router.route().mock(side_effect=relay)
        yield relay


@pytest.fixture
def crawlctl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Crawlctl:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFECYCLE_GATEWAY__URL", GATEWAY)
    monkeypatch.setenv("USER", "tester")

    def call(*words: str) -> Result:
        code = main.run(words)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "files", FILES)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def state(client: TestClient) -> Any:
    """Return everything that apply can change."""
    lists = {
        kind: client.get(f"/v1/{kind}").json()[kind]
        for kind in ("entries", "pools", "sites", "schedules", "webhooks")
    }
    return {
        kind: [
            tuple(row.get(key) for key in ("name", "site", "max", "definition", "document"))
            for row in rows
        ]
        for kind, rows in lists.items()
    }


def test_twice_is_nothing_and_a_dry_run_only_shows(
    crawlctl: Crawlctl, relay: Relay, folder: Path, client: TestClient
) -> None:
    dry = crawlctl("apply", "-f", str(folder), "--dry-run")
    assert (dry.code, relay.changes) == (0, []), dry.err
    assert "create crawler bookshop" in dry.out
    assert "  +image: registry/shop:1" in dry.out
    assert dry.out.endswith("7 would change, 0 unchanged\n")
    done = crawlctl("apply", "-f", str(folder))
    assert (done.code, len(relay.changes)) == (0, 7), done.err
    assert relay.changes[:2] == ["PUT pools/books", "PUT crawlers/bookshop"]
    before = state(client)
    for words in ((), ("--prune",), ("--dry-run",)):
        again = crawlctl("apply", "-f", str(folder), *words)
        assert (again.code, len(relay.changes)) == (0, 7), again.out + again.err
        assert again.out.endswith(
            "0 would change, 7 unchanged\n" if "--dry-run" in words else "0 changed, 7 unchanged\n"
        )
    assert state(client) == before


def test_a_change_is_shown_and_made(crawlctl: Crawlctl, relay: Relay, folder: Path) -> None:
    crawlctl("apply", "-f", str(folder))
    relay.changes.clear()
    write(folder, {"crawlers.yaml": FILES["crawlers.yaml"].replace("shop:1", "shop:2")})
    done = crawlctl("apply", "-f", str(folder))
    assert relay.changes == ["PUT crawlers/bookshop"]
    assert "  -image: registry/shop:1\n  +image: registry/shop:2" in done.out
    shown = crawlctl("apply", "-f", str(folder), "-o", "json").json
    assert shown == {"changes": [], "unchanged": 7, "dry_run": False}


def test_prune_deletes_only_kinds_that_the_files_name(
    crawlctl: Crawlctl, relay: Relay, folder: Path, client: TestClient
) -> None:
    crawlctl("apply", "-f", str(folder))
    relay.changes.clear()
    (folder / "more" / "rest.yml").write_text("schedules: []\npools: []\n")
    write(folder, {"crawlers.yaml": "- {name: fairs, image: 'registry/fairs:1'}\n"})
    kept = crawlctl("apply", "-f", str(folder))
    assert (kept.code, relay.changes) == (0, [])
    done = crawlctl("apply", "-f", str(folder), "--prune")
    assert relay.changes == [
        "DELETE schedules/nightly",
        "DELETE crawlers/bookshop",
        "DELETE pools/books",
    ], done.err
    assert [row[0] for row in state(client)["webhooks"]] == ["team", "feed"]


def test_prune_in_a_project_deletes_only_what_belongs_to_it(
    crawlctl: Crawlctl, relay: Relay, tmp_path: Path, client: TestClient
) -> None:
    pools = "pools:\n- {name: own, project: a}\n- {name: other, project: b}\n- {name: shared}\n"
    folder = write(
        tmp_path / "all", {"all.yaml": pools + "sites:\n- {site: x.example, tasks: 2}\n"}
    )
    assert crawlctl("apply", "-f", str(folder)).code == 0
    relay.changes.clear()
    some = write(tmp_path / "a", {"a.yaml": "pools: []\nsites: []\n"})
    done = crawlctl("apply", "-f", str(some), "--prune", "--project", "a")
    assert relay.changes == ["DELETE pools/own"], done.err
    assert crawlctl("apply", "-f", str(some), "--prune").code == 0
    assert relay.changes[1:] == [
        "DELETE sites/x.example",
        "DELETE pools/shared",
        "DELETE pools/other",
    ]


def test_a_call_that_is_killed_anywhere_is_completed_by_the_next(
    crawlctl: Crawlctl, relay: Relay, folder: Path, client: TestClient
) -> None:
    for most in range(7):
        relay.most = most
        killed = crawlctl("apply", "-f", str(folder))
        assert (killed.code != 0, len(relay.changes)) == (True, most)
    relay.most = 1000
    assert crawlctl("apply", "-f", str(folder)).out.endswith("1 changed, 6 unchanged\n")
    assert len(relay.changes) == 7
    assert len(state(client)["entries"]) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crawlers:\n- name: a\n  imag: x\n", "crawler a: imag: unknown key"),
        ("crawlers:\n- image: x\n", "crawlers[0].name: missing"),
        ("crawlers: {}\n", "crawlers: not a list"),
        ("crawler: []\n", "'crawler' is not a kind; known: pools, crawlers, sites"),
        ("pools:\n- name: a\n  max: 0\n", "pool a: max: Input should be greater than"),
        ("pools:\n- name: a\n  max: 1\n  reserved: 2\n", "pool a: reserved: 2 is above max: 1"),
        ("- {name: bookshop, image: x}\n", "crawlers: 'bookshop' is also in"),
        ("- name: a\n  name: b\n", "bad.yaml:2: the key 'name' appears twice"),
        ("- name: a\n  on: b\n", "bad.yaml:2: the key 'on' is not a string"),
        ("- &a {name: a}\n- *a\n", "bad.yaml:2: aliases are not supported"),
        ("- name: a\n  settings: {A: .nan}\n", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
        ("schedules:\n- name: a\n  cron: 7\n", "schedule a: cron: Input should be a valid string"),
        ("sites:\n- site: a.example\n  tasks: -1\n", "site a.example: tasks"),
        ("just text\n", "not a list of crawlers"),
    ],
)
def test_a_wrong_file_is_named_before_anything_changes(
    crawlctl: Crawlctl, relay: Relay, folder: Path, text: str, words: str
) -> None:
    write(folder, {"more/bad.yaml": text})
    result = crawlctl("apply", "-f", str(folder))
    assert (result.code, relay.changes) == (2, []), result.err
    assert words in result.err
    assert "bad.yaml" in result.err


def test_an_entry_is_set_compared_and_rolled_back(
    crawlctl: Crawlctl, relay: Relay, tmp_path: Path
) -> None:
    (tmp_path / "shop.yaml").write_text("image: registry/shop:1\nresumable: true\n")
    assert crawlctl("crawler", "set", "shop", "-f", "shop.yaml").code == 0
    result = crawlctl("crawler", "set", "shop", "--image", "registry/shop:2", "--note", "faster")
    assert "version 2" in result.err
    diff = crawlctl("crawler", "diff", "shop").out
    assert "-image: registry/shop:1\n+image: registry/shop:2\n" in diff
    assert "faster" in crawlctl("crawler", "history", "shop").out
    assert "version 1 is in use" in crawlctl("crawler", "rollback", "shop").err
    assert "no version before" in crawlctl("crawler", "rollback", "shop").err
    assert crawlctl("crawler", "use", "shop", "2").code == 0
    assert crawlctl("crawler", "diff", "shop", "2", "2").out == "They are the same.\n"
    assert crawlctl("crawler", "diff", "shop", "7").code == 3
    assert crawlctl("crawler", "delete", "shop").out == "crawler shop is deleted\n"
    assert crawlctl("crawler", "use", "shop", "1").code == 3
    assert crawlctl("crawler", "set", "shop").code == 2


def test_pool_set_changes_only_what_is_given(
    crawlctl: Crawlctl, relay: Relay, client: TestClient
) -> None:
    def shown() -> list[Any]:
        [row] = [row for row in client.get("/v1/pools").json()["pools"] if row["name"] == "shop"]
        return [row[name] for name in ("max", "weight", "reserved", "project")]

    words = ("--max", "3", "--weight", "2", "--reserved", "1", "--project", "a")
    assert crawlctl("pool", "set", "shop", *words).code == 0
    changed = crawlctl("pool", "set", "shop", "--max", "5")
    assert "max: 3 → 5" in changed.err
    assert shown() == [5, 2, 1, "a"]
    assert crawlctl("pool", "set", "shop", "--max", "none", "--project", "*").code == 0
    assert shown() == [None, 2, 1, None]
    assert "Nothing changed" in crawlctl("pool", "set", "shop").err
