"""A small mail server: stores what it accepted, can require TLS and a password, and can refuse and
hang.
"""

from __future__ import annotations

import base64
import email
import email.policy
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage


class MailServer:
    """``refuses`` maps recipients to responses, ``says`` maps commands to other responses than the
    usual ones.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], EmailMessage]] = []
        self.logins: list[str] = []
        self.refuses: dict[str, str] = {}
        self.says: dict[str, str] = {}
        self.commands: list[str] = []
        self.over = threading.Event()
        self.port = 0

    def login(self, said: str) -> None:
        self.logins.append(base64.b64decode(said).decode().replace("\0", " ").strip())


@contextmanager
def mail_server(tls: ssl.SSLContext | None = None) -> Iterator[MailServer]:
    """The server on a free loopback port. With ``tls``, it offers STARTTLS."""
    state = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.to: list[str] = []
            self.say("220 mail.example.com ready")
            while (line := self.rfile.readline(2048).decode().strip()) and not state.over.is_set():
                verb, _, rest = line.partition(" ")
                state.commands.append(line)
                if (said := state.says.get(verb.upper())) == "hang":
                    state.over.wait(600)
                    return
                self.say(said or getattr(self, verb.lower(), self.unknown)(rest))
                if verb.upper() == "STARTTLS" and tls is not None:
                    self.request = tls.wrap_socket(self.request, server_side=True)
                    self.rfile, self.wfile = (
                        self.request.makefile("rb"),
                        self.request.makefile("wb", 0),
                    )

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def unknown(self, rest: str) -> str:
            return "502 what?"

        def ehlo(self, rest: str) -> str:
            return "250-mail.example.com\r\n250-AUTH PLAIN\r\n250 " + (
                "STARTTLS" if tls is not None else "HELP"
            )

        def starttls(self, rest: str) -> str:
            return "220 go ahead"

        def auth(self, rest: str) -> str:
            state.login(rest.partition(" ")[2])
            return "235 welcome"

        def mail(self, rest: str) -> str:
            return "250 ok"

        def rcpt(self, rest: str) -> str:
            to = rest.partition("<")[2].rstrip(">")
            said = state.refuses.get(to)
            self.to += [] if said else [to]
            return said or "250 ok"

        def data(self, rest: str) -> str:
            self.say("354 go on")
            lines = []
            while (line := self.rfile.readline(4096)) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b"."))
            message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
            state.taken.append((self.to, message))
            return "250 2.0.0 queued as 7"

        def quit(self, rest: str) -> str:
            return "221 bye"

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore the error: clients that disconnect are what these tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            state.over.set()
            server.shutdown()
            thread.join()
