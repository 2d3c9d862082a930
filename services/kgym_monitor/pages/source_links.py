"""Web links to lines of kernel source. Pure."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from kgym.api.steps import GitSource

_GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
_CGIT = re.compile(r"https://git\.kernel\.org/[\w./-]+?\.git/?")
_RELEASE = re.compile(r"(\d+\.\d+)(\.\d+)?")


def link(source: object, release: str | None, frame: Mapping[str, Any]) -> str | None:
    """Return a link to a frame's line in its source repository, or else in its release."""
    path, line = frame.get("file"), frame.get("line")
    if not isinstance(path, str) or not isinstance(line, int) or path.startswith(("/", ".")):
        return None
    file = quote(path)
    if isinstance(source, GitSource):
        commit = quote(source.commit)
        if match := _GITHUB.fullmatch(source.url):
            return f"https://github.com/{match[1]}/blob/{commit}/{file}#L{line}"
        if _CGIT.fullmatch(source.url):
            return f"{source.url.rstrip('/')}/tree/{file}?id={commit}#n{line}"
        return None
    if release and (match := _RELEASE.match(release)):
        version = match[0].removesuffix(".0")
        return f"https://elixir.bootlin.com/linux/v{version}/source/{file}#L{line}"
    return None
