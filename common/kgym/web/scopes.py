"""What tokens allow."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a token allows. `submit` includes `read`, and `admin` includes `submit`."""

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
    """Who sends a request: the name of the token, and what it allows."""

    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Return whether this is allowed."""
        return any(scope in _INCLUDED[own] for own in self.scopes)

    @property
    def owner(self) -> str | None:
        """The submitter whose jobs and runs the caller may change; None: everybody's."""
        return None if self.may(Scope.ADMIN) else self.name
