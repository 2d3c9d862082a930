"""Callers on this machine, as opposed to web pages in its browser."""

import ipaddress
import re
from functools import lru_cache

from fastapi import Request

from kgym.errors import Forbidden

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/@]+)(?::[0-9]{1,5})?")


@lru_cache(1000)
def is_loopback(host: str) -> bool:
    """Return whether this address, or host name of a URL, is this machine's loopback."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_of_this_machine(request: Request) -> bool:
    """Return whether the request comes from this machine, and not through a proxy."""
    proxied = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "via"))
    return not proxied and is_loopback(request.client.host if request.client else "")


def refuse_web_pages(request: Request) -> None:
    """Raise Forbidden `foreign_page` if a web page of another site caused this request.

    Such a page cannot read the answer, but it could abort jobs; and with a host name that
    resolves to 127.0.0.1 (DNS rebinding) it could do anything.
    """
    host = request.headers.get("host", "")
    named = _HOST.fullmatch(host)
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")  # older browsers do not send Sec-Fetch-Site
    foreign = site not in {"none", "same-origin"} or origin not in {None, f"http://{host}"}
    if foreign or named is None or not is_loopback(named[1]):
        raise Forbidden("foreign_page", "only pages of this server may do this")
