"""Redaction: no known secret remains, and it never fails, whatever it gets."""

from __future__ import annotations

import base64
import json
import unicodedata
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.redaction import (
    ANYWHERE_MIN,
    MASK,
    Redactor,
    is_secret_name,
    printable,
    secrets_of_environment,
    secrets_of_url,
)

CANARY = "k4nary/S3cret+value=="
SECRETS = st.text(st.characters(codec="utf-8"), min_size=ANYWHERE_MIN, max_size=60).filter(
    lambda s: len(s.strip()) >= ANYWHERE_MIN and MASK not in s and s not in MASK
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(object),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


def encodings(secret: str) -> dict[str, str]:
    raw = secret.encode()
    return {
        "raw": secret,
        "json": json.dumps(secret)[1:-1],
        "url": quote(secret, safe=""),
        "form": quote_plus(secret),
        "hex": raw.hex(),
        "base64": base64.b64encode(raw).decode(),
        "base64url": base64.urlsafe_b64encode(raw).decode(),
        "basic": base64.b64encode(b"user:" + raw).decode(),
        "basic2": base64.b64encode(b"me:" + raw + b"!").decode(),
    }


@given(secret=SECRETS, before=st.text(max_size=30), after=st.text(max_size=30))
def test_no_form_of_a_known_secret_is_left(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    for form in ("raw", "json", "url", "form", "hex"):
        text = encodings(secret)[form]
        if text not in before + after:
            assert text not in redactor.text(f"{before} {text} {after}").replace(MASK, "\0"), form


@pytest.mark.parametrize("form", list(encodings(CANARY)))
def test_a_canary_is_found_in_every_encoding(form: str) -> None:
    shown = Redactor([CANARY]).text(f"x {encodings(CANARY)[form]} y")
    assert MASK in shown
    assert CANARY[4:] not in shown
    inner = base64.b64encode(CANARY.encode()).decode()[4:16]
    assert inner not in shown


@given(
    value=ANYTHING, secrets=st.lists(st.text(max_size=40), max_size=3), limit=st.integers(1, 300)
)
def test_it_never_raises_and_gives_only_json(value: object, secrets: list[str], limit: int) -> None:
    shown = Redactor(secrets).value(value, limit=limit)
    json.dumps(shown)


@given(secret=SECRETS, depth=st.integers(0, 9), key=st.booleans())
def test_depth_and_keys_hide_nothing(secret: str, depth: int, key: bool) -> None:
    value: Any = {secret: 1} if key else secret
    for level in range(depth):
        value = {"inner": value} if level % 2 else [value]
    shown = Redactor([secret]).value(value)
    left = json.dumps(shown, ensure_ascii=False).replace(MASK, "\0")
    assert secret not in left
    assert json.dumps(secret, ensure_ascii=False)[1:-1] not in left


def test_what_cannot_be_printed_or_read_is_named() -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Broken(dict[str, str]):
        def items(self) -> Any:
            raise KeyError("no")

    assert "Unprintable" in str(Redactor().value({"a": Unprintable()}))
    assert "unreadable" in str(Redactor().value(Broken(a="b")))


@pytest.mark.parametrize(("text", "shown"), [
    ("password=hunter22", f"password={MASK}"),
    ('{"api_key": "hunter22", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
    ("DB_PASSWORD='hunt er22' next", f"DB_PASSWORD='{MASK}' next"),
    ("Authorization: Bearer abc.def-ghi", f"Authorization: Bearer {MASK}"),
    ("sent Bearer abcdefghijkl to x", f"sent Bearer {MASK} to x"),
    ("mysql+pymysql://crawl:hunter22@db:3306/x", f"mysql+pymysql://crawl:{MASK}@db:3306/x"),
    ("amqp://u:p@ss@h/x", f"amqp://u:{MASK}@h/x"),
    ("GET /x?X-Amz-Signature=abcdef&n=1", f"GET /x?X-Amz-Signature={MASK}&n=1"),
    ("aws_secret_access_key = wJalr/XUtn", f"aws_secret_access_key = {MASK}"),
    (r'body {\"token\": \"hunter22\"}', rf'body {{\"token\": \"{MASK}\"}}'),
])  # fmt: skip
def test_names_and_urls_betray_a_secret_that_nobody_told_us(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown
    assert Redactor().text(shown) == shown, "what quotes it is polled again"


@pytest.mark.parametrize("text", [
    "run 7 ended FAILED / cancelled: Stopped by author=me",
    "registered search attributes CrawlRunId, CrawlStatus",
    "http://127.0.0.1:8500/v1/runs/7?limit=5",
    "tasks=4 crawler=services key=demo/1",
    "2 tokens left",
    "crawlers.yaml:4: secrets.API_KEY: 'env:PGPASSWORD' does not begin with CRAWL_",
    "secrets.API_KEY: 'secret:shop.keys/api_key' is a login",
    "/etc/crawl/tokens.toml: line 3: role: 'king' is unknown",
])  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor(["some other secret"]).text(text) == text


def test_names_of_secrets() -> None:
    secret = (
        "password",
        "DB_PASSWORD",
        "Authorization",
        "x-api-key",
        "gateway.token",
        "secrets",
        "AWS_SESSION_TOKEN",
    )
    harmless = (
        "author",
        "key",
        "event_key",
        "run_id",
        "callers_file",
        "monkey",
        "tokenizer_name_x",
        "task",
        "keyboard",
    )
    assert [name for name in secret if not is_secret_name(name)] == []
    assert [name for name in harmless if is_secret_name(name)] == []


def test_a_short_secret_is_masked_as_a_word_only() -> None:
    assert Redactor(["crawl"]).text("crawl crawler 'crawl'") == f"{MASK} crawler '{MASK}'"
    assert Redactor(["abc", "", "   "]).text("abc") == "abc"


def test_long_texts_are_cut_and_a_secret_at_the_cut_is_not_halved() -> None:
    text = "x" * 90 + CANARY + "y" * 5000
    for limit in range(80, 120):
        shown = Redactor([CANARY]).text(text, limit)
        assert len(shown) <= limit + 10
        assert CANARY[:5] not in shown
        assert shown.endswith("… (cut)")
    assert len(str(Redactor().value(list(range(5000))))) < 1000


def test_hostile_texts_cost_little(recwarn: pytest.WarningsRecorder) -> None:
    for text in (
        "password" * 4000,
        "a-" * 16000,
        "://" * 10000,
        "token=" * 5000,
        "'\\" * 16000,
        "://a:" * 6000,
    ):
        Redactor([CANARY]).text(text)


@given(st.text())
def test_printable_is_one_harmless_line(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [
        c
        for c in shown
        if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI")
    ]
    kept = printable(text, lines=True)
    assert {c for c in kept if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}


def test_printable_shows_what_was_there() -> None:
    assert printable("a\r\n\x1b[31m\u202eb") == r"a\r\n\x1b[31m\u202eb"
    assert printable("ärger 漢字 🕷") == "ärger 漢字 🕷"


def test_secrets_of_the_environment() -> None:
    found = secrets_of_environment({
        "AWS_SECRET_ACCESS_KEY": "aws-secret", "TEMPORAL_API_KEY": "temporal-key", "HOME": "/root", "PWD": "/srv/app",
        "OLDPWD": "/srv",
        "LIFECYCLE_GATEWAY__CALLERS_FILE": "/etc/tokens.toml", "DB": "mysql://u:p%40ss@h/x", "EMPTY_TOKEN": "",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b,other=c", "LIFECYCLE_PUSHER__SECRET": "push",
    })  # fmt: skip
    assert found - {""} == {"aws-secret", "temporal-key", "p%40ss", "p@ss", "a b", "c", "push"}
    assert secrets_of_url("https://x/y?X-Amz-Signature=abc&a=b") == {"abc"}
    assert secrets_of_url("http://[broken:password@x") == set()
