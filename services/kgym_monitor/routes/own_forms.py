"""CSRF protection: only forms of this monitor's own pages may change anything."""

import secrets
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse

from kgym.errors import Forbidden
from kgym_monitor.monitor_state import session_of


def refuse_foreign(request: Request) -> None:
    """Raise Forbidden `foreign_page` if another site's page caused the request."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if site not in {"same-origin", "none"} or (
        origin is not None and urlsplit(origin).netloc != host
    ):
        raise Forbidden("foreign_page", "only pages of this server may do this")


async def _check(request: Request) -> None:
    refuse_foreign(request)
    form = await request.form()
    sent = form.get("form_key")
    if not isinstance(sent, str) or not secrets.compare_digest(
        sent.encode(), session_of(request).form_key.encode()
    ):
        raise Forbidden("stale_form", "this page belongs to another session: reload it")


# Dependency of every route that changes something.
own_form = Depends(_check)


def back(path: str, message: str) -> RedirectResponse:
    """Redirect to one of our pages, which shows the message."""
    if not is_own(path):
        path = "/"
    mark = "&" if "?" in path else "?"
    return RedirectResponse(f"{path}{mark}{urlencode({'done': message})}", 303)


def is_own(path: str) -> bool:
    """Return whether browsers read it as a path on this server."""
    # `//host` and `/\host` are URLs of another host, and browsers ignore control characters.
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
