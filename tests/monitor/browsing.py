"""A browser without scripts, for what pages say and what their forms do."""

import html
import re
from typing import Any

import httpx

from tests.conftest import NEARBY


class Visitor(httpx.Client):
    """Keeps cookies, follows redirects, and sends forms as they stand in pages."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, follow_redirects=True, **NEARBY)

    def submit(self, page: httpx.Response, path: str, **changed: str) -> httpx.Response:
        """Send the page's form that leads to a path, with all its hidden fields, some changed."""
        form = re.search(rf'<form[^>]* action="{re.escape(path)}".*?</form>', page.text, re.DOTALL)
        assert form is not None, f"{page.url} has no form for {path}"
        fields = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form[0])
        data = {name: html.unescape(value) for name, value in fields}
        return self.post(path, data=data | changed)


def words(page: httpx.Response) -> str:
    """Return what stands in the main part of a page, its markup left out."""
    main = page.text.partition("<main")[2].partition("</main>")[0]
    text = html.unescape(re.sub(r"<[^>]*>", " ", "<main" + main))
    return " ".join(text.split())


def rows(page: httpx.Response) -> list[int]:
    """Return the numbers of the jobs that a page lists."""
    return [int(number) for number in re.findall('<tr id="job-([0-9]+)"', page.text)]


def attribute(page: httpx.Response, pattern: str) -> Any:
    """Return what the one group of the pattern finds in the page's markup."""
    match = re.search(pattern, page.text)
    assert match is not None, pattern
    return html.unescape(match[1])
