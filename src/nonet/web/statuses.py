"""The HTTP status of each error, for the API, the pages and `nonet.contrib.fastapi`."""

from __future__ import annotations

import math

from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    ConfigurationError,
    ConflictError,
    InvalidArgumentsError,
    LimitImpossible,
    NonetError,
    NotFoundError,
    RegistrationError,
    ResultUnavailable,
    ServerUnreachableError,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    UnableToAcquireLockError,
    UnknownTaskError,
)

# Suggested to clients while Redis or SQL does not answer or is full.
_UNAVAILABLE_SECONDS = 5

STATUSES: dict[type[NonetError], int] = {
    AdmissionRejected: 429,
    ServerUnreachableError: 503,
    BrokerFullError: 503,
    NotFoundError: 404,
    ResultUnavailable: 404,
    ConflictError: 409,
    UnableToAcquireLockError: 409,
    TaskFailed: 409,
    TaskCancelled: 409,
    TaskExpired: 409,
    InvalidArgumentsError: 422,
    LimitImpossible: 422,
    UnknownTaskError: 422,
    RegistrationError: 422,
    ConfigurationError: 422,
}


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error of Nonet; None: it is no fault of the request."""
    return next((code for kind, code in STATUSES.items() if isinstance(error, kind)), None)


def retry_after(error: Exception) -> dict[str, str]:
    """Return the header of an answer 429 or 503: when the caller may try again."""
    seconds = getattr(error, "retry_after", _UNAVAILABLE_SECONDS)
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
