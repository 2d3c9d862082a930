"""Errors in two families: the user's input, and the infrastructure.

The tree of errors::

    KgymError
    ├── UserError             a retry cannot help: change the input
    │   ├── Unauthorised      unknown caller: no token, or an invalid one
    │   ├── Forbidden         the caller's token does not allow the request
    │   ├── NotFound          no object of that name or number
    │   ├── Conflict          the object's state does not allow the request
    │   ├── Gone              the object existed and was removed
    │   └── TooMany           the caller exceeded its rate or share
    └── InfrastructureError   the input may be valid; the attempt is retried

An error has a `reason` (a short stable word for programs), a message for people, and `details`
(JSON) for both. Each subclass of UserError has its own HTTP status (`kgym.web.problems`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, Literal

Cause = Literal["user", "infrastructure"]


class KgymError(Exception):
    """Base of every error that kGymSuite raises on purpose."""

    cause: ClassVar[Cause] = "infrastructure"

    def __init__(self, reason: str, message: str, **details: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its attributes, which Exception's own method would drop."""
        return partial(type(self), self.reason, self.message, **self.details), ()


class UserError(KgymError):
    """The input is invalid: a patch that does not apply, a config that kconfig rejects."""

    cause = "user"


class Unauthorised(UserError):
    """Unknown caller: no token, or an invalid one."""


class Forbidden(UserError):
    """The caller's token does not allow the request."""


class NotFound(UserError):
    """No object of that name or number."""


class Conflict(UserError):
    """The object's state does not allow the request."""


class Gone(UserError):
    """The object existed and was removed."""


class TooMany(UserError):
    """The caller exceeded its rate or share.

    If waiting helps, the detail `retry_after` is the time in whole seconds.
    """


class InfrastructureError(KgymError):
    """A part of the platform failed: a full disk, a missing tool, a lost VM."""


@contextmanager
def file_errors(path: object, reason: str, kind: type[KgymError] = UserError) -> Iterator[None]:
    """Context manager: raise OSErrors as errors of this reason, which name the file."""
    try:
        yield
    except OSError as error:
        raise kind(reason, f"{path}: {error.strerror or error}") from error
