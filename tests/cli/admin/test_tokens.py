"""``crawlctl token``: tokens in the database are created, listed and revoked, and wrong ones are
named.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.gateway.access.tokens import digest, new_token
from crawler_lifecycle.store.store import open_store
from tests.cli.cli_support import NOW, Crawlctl
from tests.support.databases import make_tables


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = make_tables(f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.setenv("LIFECYCLE_DATABASE__URL", url)
    return url


def test_a_token_is_shown_once_and_its_hash_is_kept(url: str, crawlctl: Crawlctl) -> None:
    made = crawlctl("token", "create", "ci", "--role", "operate", "--expires", "90d", "--by", "ann")
    assert (made.code, made.out.startswith("crawl_"), "shown only once" in made.err) == (
        0,
        True,
        True,
    )
    token = made.out.strip()
    with closing(open_store(url)) as store:
        [live] = store.tokens.list_tokens()
        assert (live.sha256, live.project, live.expires_at) == (
            digest(token),
            "default",
            NOW + timedelta(days=90),
        )
    more = crawlctl(
        "token", "create", "all", "--role", "admin", "--project", "*", "-o", "json"
    ).json
    assert (more["project"], more["expires_at"], more["token"][:6]) == ("*", None, "crawl_")
    listed = crawlctl("token", "list", "-o", "json")
    assert [(one["name"], one["state"], one["created_by"]) for one in listed.json["tokens"]][
        1:
    ] == [("ci", "valid", "ann")]
    ended = crawlctl("token", "revoke", "ci", "--by", "bob")
    assert (ended.code, "revoked" in ended.out) == (0, True)
    said = crawlctl("token", "list", "-o", "wide").out + listed.out
    assert "revoked" in said
    assert token not in said
    assert digest(token) not in said
    assert crawlctl("token", "create", "ci", "--role", "read").code == 0, "the name is free again"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            "create c/i --role read",
            Exit.USAGE,
            "name: 'c/i' is not allowed; use 1 to 64 of letters",
        ),
        ("create ci --role king", Exit.USAGE, "king"),
        ("create ci", Exit.USAGE, "--role"),
        ("create ci --role read --project A", Exit.USAGE, "project: 'A' is not allowed"),
        ("create ci --role read --expires soon", Exit.USAGE, "give a duration such as 90s"),
        ("create ci --role read --expires 7", Exit.USAGE, "--expires '7' is not a time"),
        (
            "create ci --role read --expires 2026-11-20T12:00Z",
            Exit.USAGE,
            "has passed; next: give a later time",
        ),
        ("create ci --role read --expires 0d", Exit.USAGE, "has passed"),
        ("create ci --role read --expires 99999999d", Exit.USAGE, "2100"),
        ("create ci --role read --expires 50000d", Exit.USAGE, "2100"),
        (
            "create taken --role read",
            Exit.NOT_IN_THIS_STATE,
            "token 'taken' already exists; revoke it first",
        ),
        ("create file --role read", Exit.USAGE, "name: 'file' is already in the tokens file"),
        ("revoke nobody", Exit.NOT_IN_THIS_STATE, "has no token 'nobody'; crawlctl token list"),
    ],
)
def test_what_cannot_be_is_named_with_its_fix(
    url: str,
    tmp_path: Path,
    crawlctl: Crawlctl,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    code: Exit,
    says: str,
) -> None:
    assert url
    file = tmp_path / "tokens.toml"
    file.write_text(new_token("file", "read")[1])
    assert crawlctl("token", "create", "taken", "--role", "read").code == 0
    monkeypatch.setenv("LIFECYCLE_GATEWAY__CALLERS_FILE", str(file))
    done = crawlctl("token", *words.split())
    assert done.code == code
    assert says in done.err.replace("\n  next", "; next"), done.err
    assert "Traceback" not in done.err
