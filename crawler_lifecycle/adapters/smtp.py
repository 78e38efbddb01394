"""Sends e-mail through the configured mail server."""

from __future__ import annotations

import asyncio
import logging
import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from email.header import Header
from email.mime.text import MIMEText
from email.policy import compat32
from email.utils import formataddr, parseaddr
from functools import partial

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.features.webhooks.domain.alerts import Alert


@dataclass(frozen=True)
class SmtpMailer:
    """The port ``Mailer`` over SMTP.

    If ``host`` or ``sender`` is missing, every delivery fails with an error that contains the fix.
    """

    host: str | None = None
    port: int = 587
    tls: str = "starttls"
    user: str | None = None
    password: str | None = None
    sender: str | None = None
    timeout_s: float = 10.0

    async def mail(self, to: Sequence[str], alert: Alert, id: str) -> str:
        if self.host is None or self.sender is None:
            raise NotDelivered(
                "no mail server; set LIFECYCLE_SMTP__HOST and LIFECYCLE_SMTP__SENDER for "
                "this worker"
            )
        letter = mail_of(self.sender, to, alert, id)
        held = list[smtplib.SMTP]()
        try:
            async with asyncio.timeout(self.timeout_s):
                refused = await asyncio.to_thread(self._send, self.host, to, letter, held)
        except TimeoutError:
            raise NotDelivered(
                f"no response from {self.host} within {self.timeout_s:g} s"
            ) from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            words = printable(str(error) or type(error).__name__)[:1000]
            raise NotDelivered(
                f"{self.host} refused the message: {redaction.current().text(words)}"
            ) from None
        finally:
            for part in held:  # ends the thread if it is still waiting for a response
                with suppress(OSError):
                    if part.sock is not None:
                        part.sock.shutdown(socket.SHUT_RDWR)
        if refused:  # the other recipients would get the message twice if it were sent again
            logging.getLogger(__name__).warning(
                "the mail server refused recipients of an alert: %s", refused
            )
        return f"{self.host} accepted the message{f', but not for {refused}' if refused else ''}"

    def _send(
        self, host: str, to: Sequence[str], letter: bytes, held: list[smtplib.SMTP]
    ) -> Mapping[str, object]:
        """Send the message, and return the refused recipients.

        The connection is appended to ``held``.
        """
        trusted = None if self.tls == "none" else ssl.create_default_context()
        connect = partial(smtplib.SMTP_SSL, context=trusted) if self.tls == "tls" else smtplib.SMTP
        with closing(
            connect(host, self.port, socket.gethostname(), timeout=self.timeout_s)
        ) as server:
            held.append(server)
            if self.tls == "starttls":
                server.starttls(context=trusted)
            if self.user and self.password:
                server.login(self.user, self.password)
            refused = server.sendmail(parseaddr(self.sender or "")[1], to, letter)
            with suppress(smtplib.SMTPException):  # the message is already accepted
                server.quit()
        return refused


def mail_of(sender: str, to: Sequence[str], alert: Alert, id: str) -> bytes:
    """Return the alert as an e-mail. ``id`` is the same for every try.

    The whole subject is encoded, whatever it contains. ``EmailMessage`` would decode encoded words
    in the subject, which could inject headers in some versions of Python. The policy ``compat32``
    decodes nothing.
    """
    message = MIMEText(alert.text, _charset="utf-8")
    message["From"] = formataddr(parseaddr(sender))
    message["To"] = ", ".join(to)
    message["Subject"] = Header(alert.title, "utf-8")  # type: ignore[assignment]
    message["Message-ID"] = f"<{id.replace(':', '_')}@crawler-lifecycle>"
    message["Auto-Submitted"] = "auto-generated"  # prevents automatic replies
    return message.as_bytes(policy=compat32.clone(linesep="\r\n"))
