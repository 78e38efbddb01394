"""Alerts over HTTP and SMTP: what arrives, and what happens to their secrets."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.adapters.smtp import SmtpMailer
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.features.webhooks.adapters import HttpWebhooks
from crawler_lifecycle.features.webhooks.domain.addresses import WebhookRules
from crawler_lifecycle.features.webhooks.domain.definition import CHATS, WebhookSpec
from crawler_lifecycle.features.webhooks.ports import Mailer, ReceiverGone
from crawler_lifecycle.ports.runs import Event
from tests.support.certificates import certificate
from tests.support.faulty_http import Answer, FaultyServer, serving
from tests.support.smtp_server import MailServer, mail_server

BODY = {
    "run_id": 3,
    "crawler": "books",
    "status": "FAILED",
    "outcome": "failed",
    "cause": "Größe: <none>\r\nBcc: x@y",
}
EVENT = Event(7, 3, "uid", 1, "run.ended", BODY, datetime(2026, 3, 1, tzinfo=UTC), "runs/3")
SECRET = "/services/T0AB12/B0CD34/Zx81secretKey"
TO = "ops@example.com, dev@example.com"


class Chat(FaultyServer):
    """A chat that accepts every message."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[str, dict[str, str], Any]] = []

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        self.taken.append((target, headers, json.loads(body)))
        return Answer(200, b"ok", "text/plain")


def send(
    spec: WebhookSpec, mailer: Mailer | None = None, event: Event = EVENT, **environment: str
) -> str:
    outside = HttpWebhooks(
        WebhookRules(loopback=True), mailer, "http://page", environment=environment
    )

    async def deliver() -> str:
        async with outside.connections() as sender:
            return await sender.send(spec, event)

    return asyncio.run(deliver())


@pytest.mark.parametrize("kind", CHATS)
def test_a_chat_gets_the_message_in_its_form(kind: str) -> None:
    chat = Chat()
    with serving(chat):
        assert send(WebhookSpec(chat.url + SECRET, kind=kind)) == "200 ok"
    [(target, headers, message)] = chat.taken
    assert target == SECRET
    assert headers["content-type"] == "application/json"
    assert "webhook-signature" not in headers
    assert "Run 3 of books: FAILED" in json.dumps(message).replace("\\\\", "")
    assert "http://page/runs/3" in json.dumps(message)


@pytest.mark.parametrize(
    "answer", [Answer(404, f"no {SECRET} here".encode()), Answer(410, b"Zx81secretKey is archived")]
)
def test_a_refusal_is_told_without_the_secret_address(answer: Answer) -> None:
    chat = Chat()
    chat.faults.append(answer)
    with serving(chat), pytest.raises(NotDelivered) as failed:
        send(WebhookSpec(chat.url + SECRET, kind="slack"))
    assert isinstance(failed.value, ReceiverGone) == (answer.status == 410)
    assert "Zx81" not in str(failed.value)


def test_how_long_a_chat_wants_to_be_left_alone_is_heard() -> None:
    chat = Chat()
    chat.faults.append(Answer(429, b"", headers={"Retry-After": "30"}))
    with serving(chat), pytest.raises(NotDelivered) as failed:
        send(WebhookSpec(chat.url + SECRET, kind="discord"))
    assert failed.value.retry_after_s == 30


def test_an_address_may_be_a_variable_and_is_checked_like_any_other() -> None:
    chat, spec = Chat(), WebhookSpec("env:CRAWL_HOOK_CHAT", kind="slack")
    with serving(chat):
        send(spec, CRAWL_HOOK_CHAT=chat.url + SECRET)
    assert len(chat.taken) == 1
    for value in (
        "",
        "hunter2",
        "env:CRAWL_HOOK_CHAT",
        "https://10.0.0.1/hunter2",
        "http://example.com/hunter2",
    ):
        with pytest.raises(NotDelivered) as failed:
            send(spec, CRAWL_HOOK_CHAT=value)
        assert "hunter2" not in str(failed.value)
    with pytest.raises(NotDelivered, match="LIFECYCLE_WEBHOOKS__ENV_PREFIX"):
        send(WebhookSpec("env:AWS_SECRET_ACCESS_KEY", kind="slack"), AWS_SECRET_ACCESS_KEY=chat.url)


# --- e-mail ---------------------------------------------------------------------------------------

MAIL = WebhookSpec(TO, kind="email")


def mailer(server: MailServer, **options: Any) -> SmtpMailer:
    given = {"port": server.port, "tls": "none", "sender": "Crawls <crawls@example.com>", **options}
    return SmtpMailer("127.0.0.1", **given)


def test_a_mail_has_the_message_and_no_header_of_a_crawler() -> None:
    with mail_server() as server:
        assert send(MAIL, mailer(server)) == "127.0.0.1 accepted the message"
        send(MAIL, mailer(server))
    [(to, message), (_, again)] = server.taken
    assert to == ["ops@example.com", "dev@example.com"]
    assert (message["From"], message["To"]) == ("Crawls <crawls@example.com>", TO)
    assert message["Subject"] == "Run 3 of books: FAILED (failed)"
    assert message["Bcc"] is None
    assert "Größe: <none>  Bcc: x@y" in message.get_content()
    assert "http://page/runs/3" in message.get_content()
    assert message["Message-ID"] == again["Message-ID"], "a repeat can be recognised"


def test_one_refused_recipient_keeps_the_mail_from_nobody_else() -> None:
    with mail_server() as server:
        server.refuses["dev@example.com"] = "550 no such user"
        assert "not for {'dev@example.com': (550, b'no such user')}" in send(MAIL, mailer(server))
        server.refuses["ops@example.com"] = "450 later"
        with pytest.raises(NotDelivered, match="450, b'later'"):
            send(MAIL, mailer(server))
    assert [to for to, _ in server.taken] == [["ops@example.com"]]


@pytest.mark.parametrize(
    ("command", "said", "words"),
    [
        ("DATA", "554 no \x1b[31mspam", "554, b'no"),
        ("MAIL", "550 not you", "550, b'not you"),
        ("EHLO", "hang", "within 0.3 s"),
    ],
)
def test_a_server_that_does_not_take_it(command: str, said: str, words: str) -> None:
    before = set(threading.enumerate())
    with mail_server() as server:
        server.says[command] = said
        with pytest.raises(NotDelivered, match=words) as failed:
            send(MAIL, mailer(server, timeout_s=0.3 if said == "hang" else 60.0))
        assert str(failed.value).isprintable()
    assert server.taken == []
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), "no thread waits on"


def test_without_a_server_the_settings_are_named() -> None:
    with pytest.raises(NotDelivered, match="LIFECYCLE_SMTP__HOST"):
        send(MAIL, SmtpMailer())


def test_a_password_leaves_only_after_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = certificate(tmp_path / "certificate.pem", "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    login = {"tls": "starttls", "user": "ann", "password": "hunter2"}
    with mail_server(context) as server:
        with pytest.raises(NotDelivered, match="certificate"):
            send(MAIL, mailer(server, **login))  # its certificate has another name
        assert server.logins == []
        send(MAIL, SmtpMailer("localhost", server.port, sender="crawls@example.com", **login))
        assert server.logins == ["ann hunter2"]
        assert len(server.taken) == 1
    with mail_server() as plain:
        with pytest.raises(NotDelivered, match="STARTTLS"):
            send(MAIL, mailer(plain, **login))
        assert plain.logins == []
