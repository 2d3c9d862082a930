"""What each route asks of its callers. Every route says it, or the service does not start.

A route of the application has one of these among its dependencies (or its router has):

    needs(Scope.READ)    callers whose token allows that
    EVERYBODY            callers without a token, too

Paths that no route declares as everybody's are closed: `callers.TokenCheck` lets nobody without a
token reach them, whether there is a route or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request, params
from fastapi.routing import RouteContext, iter_route_contexts
from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute, Mount

from kgym.errors import Forbidden
from kgym.web.scopes import Caller, Scope


class Access:
    """The dependency that refuses callers without the scope; None refuses nobody."""

    def __init__(self, scope: Scope | None) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> None:
        """Raise Forbidden `scope_needed` if the caller's token does not allow this."""
        if self.scope is None:
            return
        caller: Caller = request.state.caller
        if not caller.may(self.scope):
            own = ", ".join(sorted(caller.scopes))
            raise Forbidden(
                "scope_needed",
                f"the token {caller.name!r} ({own}) does not allow this; it takes {self.scope}",
                scope=self.scope,
            )


def needs(scope: Scope) -> params.Depends:
    """Return the dependency of a route that only callers with this scope may use."""
    return params.Depends(Access(scope))


# The dependency of a route that takes no token.
EVERYBODY = params.Depends(Access(None))


class PublicFiles(StaticFiles):
    """A folder of files that everybody may read."""


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """The paths that take no token."""

    paths: frozenset[str]
    folders: tuple[str, ...]

    def __contains__(self, path: str) -> bool:
        """Return whether it is one of them, or below a folder of `PublicFiles`."""
        return path in self.paths or path.startswith(self.folders)


def open_paths(routes: Sequence[BaseRoute]) -> OpenPaths:
    """Return the paths of the routes that are everybody's.

    Raises RuntimeError for a route that does not say who may use it, and for a path that is
    everybody's by one method and not by another.
    """
    paths: dict[str, bool] = {}
    folders: list[str] = []
    for route in iter_route_contexts(routes):
        path = route.path or "/"
        original = route.original_route
        if isinstance(original, Mount) and isinstance(original.app, PublicFiles):
            folders.append(f"{path}/")
            continue
        scopes = _scopes(route)
        if not scopes:
            raise RuntimeError(
                f"the route {path} does not say who may use it:"
                " give it `needs(Scope.…)` or `EVERYBODY` (kgym.web.access)"
            )
        is_open = scopes == {None}
        if is_open and "{" in path:
            raise RuntimeError(f"the route {path} is everybody's: its path has to be one path")
        if paths.setdefault(path, is_open) != is_open:
            raise RuntimeError(f"the path {path} is everybody's by some of its methods only")
    return OpenPaths(frozenset(path for path, is_open in paths.items() if is_open), tuple(folders))


def _scopes(route: RouteContext) -> set[Scope | None]:
    dependencies: list[params.Depends] = getattr(route, "dependencies", None) or []
    accesses = (dependency.dependency for dependency in dependencies)
    return {access.scope for access in accesses if isinstance(access, Access)}
