"""What can go wrong, in two families: the user's input, and the infrastructure.

The tree of errors::

    KgymError
    ├── UserError             retrying cannot help: change the input and submit again
    │   ├── Unauthorised      the caller is not known: no token, or one that is not valid
    │   ├── Forbidden         the caller's token does not allow it
    │   ├── NotFound          there is nothing of that name or number
    │   ├── Conflict          the state of what it is about does not allow it
    │   ├── Gone              there was such a thing, and it has been removed
    │   └── TooMany           the caller has asked for more than its share
    └── InfrastructureError   the input may be fine; the attempt is repeated

An error carries a `reason` (a short stable word for programs), a message for
people, and `details` (JSON) for both. Services answer the kinds of UserError with statuses of
their own (`kgym.web.problems`).
"""

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
        """Be the same on the other side of a pickle."""
        return _made, (type(self), self.reason, self.message, self.details)


def _made(
    kind: type[KgymError], reason: str, message: str, details: dict[str, object]
) -> KgymError:
    return kind(reason, message, **details)


class UserError(KgymError):
    """The input is wrong: a patch that does not apply, a config that kconfig rejects."""

    cause = "user"


class Unauthorised(UserError):
    """The caller is not known: no token, or one that is not valid."""


class Forbidden(UserError):
    """The caller's token does not allow it."""


class NotFound(UserError):
    """There is nothing of that name or number."""


class Conflict(UserError):
    """The state of what it is about does not allow it."""


class Gone(UserError):
    """There was such a thing, and it has been removed."""


class TooMany(UserError):
    """The caller has asked for more than its share.

    Where waiting helps, the detail `retry_after` says how long, in whole seconds.
    """


class InfrastructureError(KgymError):
    """A part of the platform failed: a full disk, a missing tool, a lost VM."""
