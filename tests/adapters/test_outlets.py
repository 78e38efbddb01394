"""A tenant's text at every outlet arrives unchanged, and cannot add a header, markup, a formula or
a line.
"""

from __future__ import annotations

import email
import email.header
import email.policy
import html
import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crawler_lifecycle.adapters.smtp import mail_of
from crawler_lifecycle.cloudevents import ENTRY_MAX, event_text
from crawler_lifecycle.features.webhooks.domain.alerts import Alert, alert_of, message
from crawler_lifecycle.features.webhooks.domain.signing import message_id
from crawler_lifecycle.observability import logs
from crawler_lifecycle.ports.runs import Event

T0 = datetime(2026, 3, 1, tzinfo=UTC)
SENDER, TO = "Crawls <crawls@example.com>", ["ops@example.com"]
#: Encoded words that contain lines: in the subject of a mail, Python decodes them as headers and a
#: body.
WORDS = "=?utf-8?q?x=0D=0AReply-To=3A_evil=40example.org=0D=0AContent-Type=3A_text/html=0D=0A=0D=0A<b>y?="
BASE64 = "=?utf-8?b?eA0KQmNjOiBldmlsQGV4YW1wbGUub3JnDQoNCjxiPnk=?="
PIECES = [
    *(
        WORDS,
        BASE64,
        "=?us-ascii?q?=?=",
        "=?",
        "?=",
        "\r",
        "\n",
        "\r\n.\r\n",
        "\r\nBcc: evil@example.org",
        "\0",
        "\x1b[2J",
    ),
    *(
        "\ud800",
        "\udc0a",
        "\u2028",
        "\u202e",
        "\ufeff",
        "\x85",
        "ü",
        "😀",
        "<!channel>",
        "<@U1>",
        "<https://a.example|b>",
    ),
    *(
        "@everyone",
        "*b*",
        "_i_",
        "~s~",
        "`c`",
        "```",
        "[x](https://a.example)",
        "<script>",
        "&lt;",
        "=1+1",
        "|",
        "\\",
        " ",
    ),
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=6).map("".join)
HEADERS = {
    *(
        "Content-Type",
        "MIME-Version",
        "Content-Transfer-Encoding",
        "From",
        "To",
        "Subject",
        "Message-ID",
    ),
    "Auto-Submitted",
}


def event_of(text: str) -> Event:
    """An ended graph with this name and this cause."""
    body = {
        "key": text,
        "name": text,
        "state": "failed",
        "cause": text,
        "tasks": {text: 1},
        "project": "a",
    }
    return Event(7, None, None, None, "graph.ended", body, T0, f"graphs/{text}")


def told(text: str) -> Alert:
    return alert_of(
        "graph.ended", f"graphs/{text}", event_of(text).body, "https://crawls.example.com"
    )


@given(TEXTS)
@example(WORDS)
@example(BASE64)
@example("x" * 200 + WORDS)
def test_a_mail_has_our_headers_and_the_text_as_it_is(text: str) -> None:
    alert = told(text)
    raw = mail_of(SENDER, TO, alert, message_id(f"graph/{text}"))
    assert raw.isascii(), "no server needs an extension for it"
    assert b"\r" not in raw.replace(b"\r\n", b"")
    assert b"\n" not in raw.replace(b"\r\n", b"")
    assert max(map(len, raw.split(b"\r\n"))) < 998
    for policy in (email.policy.default, email.policy.compat32):
        found = email.message_from_bytes(raw, policy=policy)
        assert set(found.keys()) == HEADERS
        assert len(found.keys()) == len(HEADERS)
        assert found.get_content_type() == "text/plain"
        assert not found.is_multipart()
    read = email.message_from_bytes(raw, policy=email.policy.default)
    assert read["From"] == SENDER
    assert read["To"] == TO[0]
    assert decoded(raw) == alert.title
    assert read.get_content().replace("\r\n", "\n").rstrip("\n") == alert.text.rstrip("\n")


def decoded(raw: bytes) -> str:
    """Return the subject as a mail program shows it, with its encoded words decoded once."""
    kept = email.message_from_bytes(raw, policy=email.policy.compat32)["Subject"]
    found = email.header.decode_header("".join(kept.split("\r\n")))
    return "".join(
        part.decode(charset or "ascii") if isinstance(part, bytes) else part
        for part, charset in found
    )


@given(TEXTS)
def test_slack_finds_no_mark_mention_or_link_of_a_tenant(text: str) -> None:
    alert = told(text)
    sent = json.loads(json.dumps(message("slack", alert), ensure_ascii=False).encode())
    title, cause, line, link = (
        [block["text"]["text"] for block in sent["blocks"]] if alert.cause else (None,) * 4
    )
    if title is None:
        return
    for shown, form, whole in (
        (title, r"\*`(.*)`\*", alert.title),
        (cause, r"```(.*)```", alert.cause),
    ):
        inside = re.fullmatch(form, shown)
        assert inside is not None
        assert "`" not in inside[1], (
            "what is inside of code is not formatted, and nothing leads out of it"
        )
        assert not set(inside[1]) & set("<>")
        assert html.unescape(inside[1]) == whole.replace("`", "'")
    assert line.startswith("`")
    assert re.fullmatch(r"<https://crawls\.example\.com/graphs/[^<>|]*\|Open the web UI>", link)
    assert sent["text"].count("`") == 6, "receivers without blocks show it as code"


@given(TEXTS)
def test_teams_and_discord_get_text_without_marks(text: str) -> None:
    alert = told(text)
    card = json.loads(json.dumps(message("teams", alert), ensure_ascii=False).encode())[
        "attachments"
    ][0]["content"]
    runs = [run for block in card["body"] for run in block["inlines"]]
    assert [run["text"] for run in runs] == [
        one for one in (alert.title, alert.cause, alert.line) if one
    ]
    assert {run["type"] for run in runs} == {"TextRun"}, "the only one that reads no marks"
    sent = json.loads(json.dumps(message("discord", alert), ensure_ascii=False).encode())
    assert sent["allowed_mentions"] == {"parse": []}
    assert "content" not in sent
    [embed] = sent["embeds"]
    if not embed["title"].endswith("…"):
        assert unquoted(embed["title"]) == alert.title
    if not embed["description"].endswith("…"):
        assert unquoted(embed["description"]) == alert.cause


def unquoted(text: str) -> str:
    """Return what Discord shows. Every markup character must be escaped."""
    pieces = re.findall(r"\\[^0-9A-Za-z\s]|.", text)
    assert "".join(pieces) == text
    assert not [one for one in pieces if one in "\\*_~`|<>#[]()@"]
    return "".join(one.removeprefix("\\") for one in pieces)


@given(TEXTS)
def test_a_signed_event_is_json_that_every_reader_takes(text: str) -> None:
    document = event_text(event_of(text), ENTRY_MAX)
    assert document.isascii()
    assert document.isprintable()
    read = json.loads(document)["data"]["name"]
    assert read == re.sub("[\ud800-\udfff]", "\ufffd", text)
    read.encode()
    assert re.fullmatch(r"[\w/~:%-]*", message_id(f"graph/{text}"), re.ASCII), (
        "a header, and parts of a signature"
    )


@pytest.fixture(scope="module")
def log() -> Iterator[Any]:
    """Our log handler on its own stream, in the machine-readable form."""
    stream = io.StringIO()
    handler = logs._Handler(stream)
    logger = logging.getLogger("tests.outlets")
    logger.addHandler(handler)
    logger.propagate = False

    def lines(text: str) -> str:
        stream.seek(0)
        stream.truncate()
        logger.error("graph %s failed", text, extra={"name_of_it": text})
        handler.flush()
        return stream.getvalue()

    yield lines
    logger.removeHandler(handler)


@given(text=TEXTS)
def test_a_log_line_is_one_line_and_moves_no_cursor(log: Any, text: str) -> None:
    [line, rest] = log(text).split("\n")
    assert rest == ""
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", line)
    read = json.loads(line)
    assert read["level"] == "error"
    assert not re.search(
        "[\x00-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", read["event"] + read["name_of_it"]
    )
