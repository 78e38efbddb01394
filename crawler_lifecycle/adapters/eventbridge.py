"""The event sink for Amazon EventBridge.

boto3 is imported when a sink is created and not with this module, so that all other code works
without it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from typing import Any

from crawler_lifecycle.cloudevents import SOURCE, bus_text
from crawler_lifecycle.domain.errors import InvalidRequest, NotDelivered
from crawler_lifecycle.ports.runs import Event

SCHEME = "eventbridge://"
SETTING = "LIFECYCLE_EVENTS__URL"
#: Seconds until the bus is checked again after it was found.
BUS_SEEN_FOR_S = 300.0
#: Timeouts of a request in seconds: for the connection, and between two parts of the response.
CONNECT_S = 3.0
READ_S = 8.0
#: The maximum number of characters of a response that an error quotes.
TEXT_MAX = 300

_NAME = re.compile(r"[/.\-_A-Za-z0-9]{1,256}")
_ARN = re.compile(
    r"arn:aws[-a-z]*:events:(?P<region>[-a-z0-9]+):\d{12}:event-bus/[/.\-_A-Za-z0-9]{1,256}"
)
#: The user and password in a URL.
_LOGIN = re.compile(r"//[^/@\s]+@")

_NO_RIGHT = "allow events:PutEvents on this bus to the account that the worker uses"
_NO_SIGHT = "this account may not read the bus; allow events:DescribeEventBus"
_BAD_CREDENTIALS = (
    "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the role of the pod"
)
_BUSY = (
    "nothing is wrong with the event; if this continues, raise the account's quota for PutEvents"
)
#: The fix for each error code of AWS.
FIXES = {
    code: fix
    for codes, fix in (
        ("AccessDenied AccessDeniedException", _NO_RIGHT),
        ("NotAuthorizedForSourceException", f"let the policy of the bus allow the source {SOURCE}"),
        ("NotAuthorizedForDetailTypeException", "let the policy of the bus allow this detail type"),
        ("UnrecognizedClientException InvalidClientTokenId", _BAD_CREDENTIALS),
        (
            "InvalidSignatureException SignatureDoesNotMatch",
            f"{_BAD_CREDENTIALS}; and the clock of this machine",
        ),
        ("RequestExpired", "set the clock of this machine"),
        ("ExpiredToken ExpiredTokenException", "renew the credentials"),
        ("ResourceNotFoundException", f"create the bus, or set {SETTING}"),
        ("ThrottlingException Throttling TooManyRequestsException", _BUSY),
        (
            "InternalFailure InternalException",
            "EventBridge has an internal error; the event is sent again",
        ),
    )
    for code in codes.split()
}

log = logging.getLogger(__name__)


class EventBridgeSink:
    """The port ``EventSink`` over ``PutEvents``.

    The URL is ``eventbridge://NAME``, or ``eventbridge://`` and the ARN of the bus.

    Each request contains one event. A run ends with a single event, so there is nothing to combine.
    A refused event cannot cause another event to fail, and only events that were not accepted are
    sent again. The caller repeats failed requests; the client's own retries are off.

    The region, the credentials and the endpoint come from AWS's own settings. ``CONNECT_S`` and
    ``READ_S`` limit each request. Raises ``InvalidRequest`` for a URL or a configuration that
    allows no request.
    """

    name = "eventbridge"

    def __init__(self, url: str) -> None:
        self.bus = url.removeprefix(SCHEME)
        arn = _ARN.fullmatch(self.bus)
        if not url.startswith(SCHEME) or (arn is None and not _NAME.fullmatch(self.bus)):
            raise InvalidRequest(
                f"{SETTING}: {url!r} is not allowed; give eventbridge://NAME, "
                "eventbridge://default or "
                "eventbridge://arn:aws:events:REGION:ACCOUNT:event-bus/NAME"
            )
        self._client = _client(url, arn["region"] if arn else None)
        self._where = (
            f"EventBridge bus {self.bus} at {_LOGIN.sub('//…@', self._client.meta.endpoint_url)}"
        )
        self._lock = threading.Lock()
        self._found_until = 0.0

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, event: Event) -> None:
        """Put the event on the bus.

        After ``NotDelivered``, the event may still have arrived with the same id.
        """
        try:
            detail = bus_text(event)
        except (TypeError, ValueError) as error:
            raise NotDelivered(f"{self._where}: the event cannot be written: {error}") from error
        self._check_bus()
        entry = {
            "EventBusName": self.bus,
            "Time": event.created_at,
            "Source": SOURCE,
            "DetailType": event.type,
            "Resources": [event.subject],
            "Detail": detail,
        }
        self._check_answer(self._call("put_events", Entries=[entry]))

    def check(self) -> str:
        """Check the bus, and return its name.

        Raises ``NotDelivered``. Only a real event shows whether this account is allowed to put
        events on the bus.
        """
        answer = self._call("describe_event_bus", denied_is_none=True, Name=self.bus)
        if answer is None:
            raise NotDelivered(
                f"{self._where}: {_NO_SIGHT}; sending may still work, but a missing bus would not "
                "be noticed"
            )
        if not answer.get("Arn"):
            raise NotDelivered(
                f"{self._where} responded without describing a bus; check AWS_ENDPOINT_URL"
            )
        return f"EventBridge bus {answer['Arn']}"

    def _check_bus(self) -> None:
        """Check that the bus exists, because EventBridge accepts and drops events for a missing
        bus.
        """
        with self._lock:
            if time.monotonic() < self._found_until:
                return
        if self._call("describe_event_bus", denied_is_none=True, Name=self.bus) is None:
            log.warning("%s: a missing bus would not be noticed: %s", self._where, _NO_SIGHT)
        with self._lock:
            self._found_until = time.monotonic() + BUS_SEEN_FOR_S

    def _call(
        self, operation: str, *, denied_is_none: bool = False, **arguments: Any
    ) -> dict[str, Any] | None:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        # `from None`: the text of an AWS error may contain session tokens, and causes are stored
        # with the failure.
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**arguments)
        except ClientError as error:
            stated = error.response.get("Error", {})
            code = str(stated.get("Code", "unknown"))
            if denied_is_none and code in ("AccessDenied", "AccessDeniedException"):
                return None
            raise NotDelivered(self._refused(code, stated.get("Message"))) from None
        except BotoCoreError as error:
            here = isinstance(
                error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError
            )
            fix = _BAD_CREDENTIALS if here else "check the network, the region and AWS_ENDPOINT_URL"
            raise NotDelivered(f"{self._where}: {_first_line(error)}; {fix}") from None
        # The client can raise any error for a response that is not from AWS.
        except Exception as error:
            raise NotDelivered(
                f"{self._where} gave a response that cannot be read ({type(error).__name__}); "
                "check "
                "AWS_ENDPOINT_URL"
            ) from None
        return answer

    def _check_answer(self, answer: dict[str, Any] | None) -> None:
        """Raise ``NotDelivered`` unless the entry has an id.

        Only the id proves that the event is on the bus.
        """
        answer = answer or {}
        entries = answer.get("Entries")
        entry = (
            entries[0]
            if isinstance(entries, list) and len(entries) == 1 and isinstance(entries[0], dict)
            else {}
        )
        if entry.get("ErrorCode"):
            raise NotDelivered(self._refused(str(entry["ErrorCode"]), entry.get("ErrorMessage")))
        if answer.get("FailedEntryCount") or not entry.get("EventId"):
            raise NotDelivered(
                f"{self._where} responded without accepting the event; check AWS_ENDPOINT_URL"
            )

    def _refused(self, code: str, message: object) -> str:
        fix = FIXES.get(code)
        return f"{self._where}: {code}: {_first_line(message)}" + (f"; {fix}" if fix else "")


def _client(url: str, region: str | None) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, NoRegionError

    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=32,
        user_agent_extra="crawler-lifecycle",
    )
    try:
        session = boto3.session.Session()
        # boto3 itself reads only AWS_DEFAULT_REGION, but containers on AWS get AWS_REGION.
        where = region or session.region_name or os.environ.get("AWS_REGION")
        return session.client("events", region_name=where, config=config)
    except NoRegionError:
        raise InvalidRequest(
            f"{SETTING}: {url!r} needs a region; set AWS_REGION, or give the ARN of the bus"
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise InvalidRequest(
            f"{SETTING}: {url!r} cannot be served: {_first_line(error)}; check the AWS_* variables"
        ) from None


def _first_line(text: object) -> str:
    """Return the first line of a response.

    After a refused signature, other lines contain headers with tokens.
    """
    line = str(text or "no reason given").strip().partition("\n")[0]
    line = _LOGIN.sub("//…@", "".join(c for c in line if c.isprintable()))
    return line[:TEXT_MAX].rstrip(" .")
