"""Access rules of routes. A service does not start if one of its routes has none.

Each route, or its router, has one of these among its dependencies:

    needs(Scope.READ)    callers whose token has this scope
    EVERYBODY            all callers, with or without a token

All other paths need a token: `callers.TokenCheck` rejects callers without one, whether or not
the path has a route.
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
    """The dependency that refuses callers without the scope; with None, it admits everybody."""

    def __init__(self, scope: Scope | None) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> None:
        """Raise Forbidden `scope_needed` if the caller's token lacks the scope."""
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
    """A folder of files that can be read without a token."""


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """The paths that need no token."""

    paths: frozenset[str]
    folders: tuple[str, ...]

    def __contains__(self, path: str) -> bool:
        """Return whether the path is open, or below a folder of `PublicFiles`."""
        return path in self.paths or path.startswith(self.folders)


def open_paths(routes: Sequence[BaseRoute]) -> OpenPaths:
    """Return the paths of the routes that are open to everybody.

    Raises RuntimeError for a route without an access rule, and for a path that is open by one
    method only, since `TokenCheck` decides by the path alone.
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
                f"the route {path} has no access rule:"
                " give it `needs(Scope.…)` or `EVERYBODY` (kgym.web.access)"
            )
        is_open = scopes == {None}
        if is_open and "{" in path:
            raise RuntimeError(f"the route {path} is open: its path cannot have parameters")
        if paths.setdefault(path, is_open) != is_open:
            raise RuntimeError(f"the path {path} is open for some of its methods only")
    return OpenPaths(frozenset(path for path, is_open in paths.items() if is_open), tuple(folders))


def _scopes(route: RouteContext) -> set[Scope | None]:
    dependencies: list[params.Depends] = getattr(route, "dependencies", None) or []
    accesses = (dependency.dependency for dependency in dependencies)
    return {access.scope for access in accesses if isinstance(access, Access)}
