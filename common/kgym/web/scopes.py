"""Tokens and their scopes."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from kgym.api.steps import Strict


class Scope(StrEnum):
    """Permission of a token. `submit` includes `read`, and `admin` includes `submit`."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"
    WORKER = "worker"


_INCLUDED = {
    Scope.READ: {Scope.READ},
    Scope.SUBMIT: {Scope.READ, Scope.SUBMIT},
    Scope.ADMIN: {Scope.READ, Scope.SUBMIT, Scope.ADMIN},
    Scope.WORKER: {Scope.WORKER},
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: its token's name and scopes."""

    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Return whether one of the scopes includes this one."""
        return any(scope in _INCLUDED[own] for own in self.scopes)

    @property
    def owner(self) -> str | None:
        """The submitter whose jobs and runs the caller may change; None for everybody's."""
        return None if self.may(Scope.ADMIN) else self.name


class Token(Strict):
    """A token without its secret."""

    name: str
    scopes: list[Scope]
    priority: int
    created_at: datetime
    revoked_at: datetime | None
