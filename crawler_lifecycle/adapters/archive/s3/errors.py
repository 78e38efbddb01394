"""Descriptions of errors from S3: code, message and fix. They contain no secrets."""

from __future__ import annotations

import os
import re

from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from crawler_lifecycle.domain.errors import NotDelivered

#: The errors that every call of the client can raise.
S3_ERRORS = (ClientError, BotoCoreError, ResponseParserError)

_TEXT_MAX = 300
_CREDENTIALS = (
    "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the role "
    "of this machine"
)
_EXPIRED = (
    "the credentials have expired; renew them (if they come from a role, the next try reads them "
    "again)"
)
_REGION = "set AWS_REGION (AWS_DEFAULT_REGION) to the region of the bucket"

#: The fix for each error code of S3.
_FIXES = {
    code: fix
    for codes, fix in (
        ("NoSuchBucket", "create the bucket or correct {setting}"),
        ("AccessDenied 403", "give the credentials the permissions that {page} lists"),
        (
            "AllAccessDisabled",
            "the bucket is closed; ask its owner, or set {setting} to another bucket",
        ),
        ("InvalidAccessKeyId SignatureDoesNotMatch InvalidToken", _CREDENTIALS),
        ("ExpiredToken ExpiredTokenException TokenRefreshRequired", _EXPIRED),
        ("RequestTimeTooSkewed RequestExpired", "the clock of this machine is wrong; set it"),
        (
            "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException",
            _REGION,
        ),
        (
            "SlowDown ServiceUnavailable InternalError 500 503",
            "the service has no capacity now; the request is repeated later",
        ),
        (
            "404",
            "the object was sent but does not exist; check the bucket, AWS_ENDPOINT_URL, and "
            "rules that remove objects",
        ),
        ("BadDigest", "the bytes were damaged on the network; they are sent again"),
        ("InvalidPart", "a part was lost or damaged; all parts are sent again"),
        (
            "NoSuchUpload",
            "the upload was aborted by another program or a lifecycle rule; it starts again",
        ),
        ("EntityTooLarge", "the archive is larger than this service accepts; lower bytes_max"),
        ("QuotaExceeded", "the bucket is full; delete objects or raise its quota"),
        ("XMinioStorageFull", "the storage is full; delete objects or add storage"),
        ("KMS.DisabledException", "the bucket's encryption key is disabled; enable it"),
        (
            "NotImplemented",
            "this service does not support an operation that uploads need; see {page}",
        ),
    )
    for code in codes.split()
}

#: The fix for each class of client-side errors. The first match counts.
_LOCAL_FIXES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (exceptions.NoCredentialsError, f"no AWS credentials were found; {_CREDENTIALS}"),
    ((exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError), _CREDENTIALS),
    (exceptions.TokenRetrievalError, _EXPIRED),
    (exceptions.ProfileNotFound, "correct AWS_PROFILE"),
    (exceptions.NoRegionError, _REGION),
    (exceptions.SSLError, "check the certificate of the endpoint, and AWS_CA_BUNDLE"),
    (exceptions.ProxyConnectionError, "check HTTPS_PROXY and NO_PROXY"),
    (
        (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError),
        "check AWS_ENDPOINT_URL, AWS_REGION and the network",
    ),
    (ResponseParserError, "this is not a response from S3; check AWS_ENDPOINT_URL"),
    (exceptions.HTTPClientError, "the connection broke; the request is repeated later"),
)

_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_USER_IN_URL = re.compile(r"//[^/@\s]+@")


def code_of(error: Exception) -> str:
    """Return S3's own code (such as ``NoSuchUpload``), the HTTP status of a response without a
    body, or the class of the error.
    """
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code") or "Unknown")
    return type(error).__name__


#: The page that lists the required permissions, by the setting with the location.
_PAGES = {
    "LIFECYCLE_ARCHIVE__URL": "docs/archive.md",
    "LIFECYCLE_CLUSTER__FILES_URL": "docs/kubernetes-files.md",
    "LIFECYCLE_CODE__URL": "docs/archive.md",
}


def not_delivered(
    place: str, what: str, error: Exception, *, setting: str = "LIFECYCLE_ARCHIVE__URL"
) -> NotDelivered:
    """Return the error to raise, with the location, the failed call, S3's code and message, and the
    fix.

    ``setting`` is the name of the setting with the location.
    """
    code = code_of(error)
    if isinstance(error, ClientError):
        message = str(error.response.get("Error", {}).get("Message") or "")
        operation = f" ({error.operation_name})"
        fix = _FIXES.get(code)
    else:
        message = str(error)
        operation = ""
        fix = next((fix for kind, fix in _LOCAL_FIXES if isinstance(error, kind)), None)
    message = masked(" ".join(message.split()))[:_TEXT_MAX]
    text = f"{place}: {what}: {code}{operation}"
    if message and message != code:
        text += f": {message}"
    if fix is None:
        return NotDelivered(text)
    return NotDelivered(f"{text}; {fix.format(setting=setting, page=_PAGES[setting])}")


def masked(text: str) -> str:
    """Return the text without credentials."""
    text = _USER_IN_URL.sub("//…@", _KEY_ID.sub("…", text))
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"):
        if (value := os.environ.get(name)) and len(value) > 7:
            text = text.replace(value, "…")
    return text
