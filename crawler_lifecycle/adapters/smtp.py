"""Sends e-mail through the mail server of the settings."""

from __future__ import annotations

import asyncio
import logging
import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.domain.webhooks.alerts import Alert


@dataclass(frozen=True)
class SmtpMailer:
    """The port ``Mailer`` over SMTP. Without ``host`` and ``sender`` every delivery fails with the cure."""

    host: str | None = None
    port: int = 587
    tls: str = "starttls"
    user: str | None = None
    password: str | None = None
    sender: str | None = None
    timeout_s: float = 10.0

    async def mail(self, to: Sequence[str], alert: Alert, id: str) -> str:
        if self.host is None or self.sender is None:
            raise NotDelivered("no mail server; set LIFECYCLE_SMTP__HOST and LIFECYCLE_SMTP__SENDER for this worker")
        message, held = EmailMessage(), list[smtplib.SMTP]()
        message["From"], message["To"], message["Subject"] = self.sender, ", ".join(to), alert.title
        message["Message-ID"] = f"<{id.replace(':', '_')}@crawler-lifecycle>"
        message["Auto-Submitted"] = "auto-generated"  # nobody's absence is answered
        message.set_content(alert.text, cte="quoted-printable")
        try:
            async with asyncio.timeout(self.timeout_s):
                refused = await asyncio.to_thread(self._send, self.host, message, held)
        except TimeoutError:
            raise NotDelivered(f"no answer of {self.host} within {self.timeout_s:g} s") from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            words = printable(str(error) or type(error).__name__)[:1000]
            raise NotDelivered(f"{self.host} does not take it: {redaction.current().text(words)}") from None
        finally:
            for one in held:  # ends the thread if it still waits for an answer
                with suppress(OSError):
                    if one.sock is not None:
                        one.sock.shutdown(socket.SHUT_RDWR)
        if refused:  # the others have it: trying again would send it to them twice
            logging.getLogger(__name__).warning("the mail server refused recipients of an alert: %s", refused)
        return f"{self.host} took it{f', but not for {refused}' if refused else ''}"

    def _send(self, host: str, message: EmailMessage, held: list[smtplib.SMTP]) -> Mapping[str, object]:
        """Hand the message over, and return the refused recipients. The connection is appended to ``held``."""
        trusted = None if self.tls == "none" else ssl.create_default_context()
        connect = partial(smtplib.SMTP_SSL, context=trusted) if self.tls == "tls" else smtplib.SMTP
        with closing(connect(host, self.port, socket.gethostname(), timeout=self.timeout_s)) as server:
            held.append(server)
            if self.tls == "starttls":
                server.starttls(context=trusted)
            if self.user and self.password:
                server.login(self.user, self.password)
            refused = server.send_message(message)
            with suppress(smtplib.SMTPException):  # the message is taken already
                server.quit()
        return refused
