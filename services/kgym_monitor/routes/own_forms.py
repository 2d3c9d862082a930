"""What changes something comes from a form of this monitor's own pages (CSRF protection)."""

import secrets
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse

from kgym.errors import Forbidden
from kgym_monitor.monitor_state import session_of


def refuse_foreign(request: Request) -> None:
    """Raise Forbidden `foreign_page` if another site's page made the browser send this."""
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
        raise Forbidden("stale_form", "this page is of another session: load it again")


# The dependency of every route that changes something.
own_form = Depends(_check)


def back(path: str, message: str) -> RedirectResponse:
    """Return to a page of ours that says what was done."""
    if not is_own(path):
        path = "/"
    mark = "&" if "?" in path else "?"
    return RedirectResponse(f"{path}{mark}{urlencode({'done': message})}", 303)


def is_own(path: str) -> bool:
    """Return whether it is a path of this server, and of no other, as browsers read it."""
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
