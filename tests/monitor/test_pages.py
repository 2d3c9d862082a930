"""The monitor by its requests: who gets in, what changes something, what every answer says."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgym.api.jobs import JobView
from kgym.client import Client
from kgym.errors import UserError
from kgym.web.server import serve
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.app import Monitor
from kgym_monitor.assets import PACKAGED_FILES, assets
from kgym_monitor.monitor_state import MonitorState
from tests.conftest import NEARBY, ROOT
from tests.demo.monitored import monitored
from tests.demo.showcase import trial
from tests.monitor.conftest import Site


class Browser(httpx.Client):
    """A browser that keeps cookies, follows no redirect, and knows the key of its forms."""

    def __init__(self, url: str, **headers: str) -> None:
        super().__init__(base_url=url, headers=headers, **NEARBY)

    def form_key(self, path: str = "/jobs/1") -> str:
        """Return the key that the forms of a page carry."""
        match = re.search('name="form_key" value="([^"]+)"', self.get(path).text)
        assert match is not None
        return match[1]


@pytest.fixture
def here(site: Site) -> Iterator[Browser]:
    with Browser(site.url) as browser:
        yield browser


@pytest.fixture(scope="module")
def waiting(site: Site) -> Iterator[JobView]:
    """A job that is there."""
    job = site.client.submit(trial("HELD", tags=("night:1",)))
    yield job
    site.showcase.let_go.set()


def test_every_answer_has_the_policy(here: Browser) -> None:
    for path in (
        "/",
        "/jobs",
        "/bugs",
        "/suitecache",
        "/workers",
        "/login",
        "/nothing",
        "/assets/x",
        "/jobs/999999",
    ):
        headers = here.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["x-content-type-options"] == "nosniff"


class Inline(HTMLParser):
    """Finds scripts and styles that stand in a page; words about them are none."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.elements.append((tag, ""))
        self.elements += [(tag, name) for name in names if name == "style" or name[:2] == "on"]


def test_no_page_has_script_or_style_within(here: Browser, waiting: JobView) -> None:
    listed = ("/", "/jobs", "/bugs", "/suitecache", "/workers", f"/jobs/{waiting.id}")
    for path in (*listed, "/login", "/jobs/abort", "/jobs/restart", "/search?q=slab"):
        text = here.get(path).text
        inline = Inline()
        inline.feed(text)
        assert inline.elements == [], path
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), path


def test_only_the_listed_files_of_packages_are_served(here: Browser) -> None:
    known = assets()
    for name in PACKAGED_FILES:
        answer = here.get(known.url(name))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.content == (ROOT / "node_modules" / name).read_bytes()
    version = f"/assets/{known.version}"
    for path in ("htmx.org/package.json", "../assets.py", "%2e%2e/app.py", "", "monitor.css/x"):
        assert here.get(f"{version}/{path}").status_code == 404
    assert here.get("/assets/old/monitor.css").status_code == 404


def test_the_lock_names_no_registry() -> None:
    assert "http" not in (ROOT / "package-lock.json").read_text()


@pytest.mark.anyio
async def test_a_route_that_names_no_access_does_not_start(site: Site) -> None:
    async with MonitorState.opened(site.scheduler, None, site.benchmarks) as state:
        unsaid = Monitor(state)
        unsaid.add_api_route("/more", lambda: None)
        with pytest.raises(RuntimeError, match="/more has no access rule"):
            async with serve(unsaid):
                pass


def test_a_change_needs_a_form_of_our_own(here: Browser, waiting: JobView) -> None:
    path, key = f"/jobs/{waiting.id}/abort", here.form_key(f"/jobs/{waiting.id}")
    assert here.post(path).status_code == 403
    assert here.post(path, data={"form_key": "x"}).status_code == 403
    good = {"form_key": key}
    foreign: list[dict[str, str]] = [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
    ]
    for headers in foreign:
        answer = here.post(path, data=good, headers=headers)
        assert (answer.status_code, "foreign_page" in answer.text) == (403, True)
    assert here.get(f"/jobs/{waiting.id}").text.count("chip aborted") == 0


def test_by_another_name_this_machine_is_not_served(site: Site) -> None:
    with Browser(site.url, Host="evil.example.org") as rebound:
        assert rebound.get("/jobs").status_code == 403


def test_lists_are_filtered_by_their_address(here: Browser, site: Site, waiting: JobView) -> None:
    def shown(query: str) -> set[str]:
        return set(re.findall('<tr id="job-([0-9]+)"', here.get(f"/jobs{query}").text))

    own = str(waiting.id)
    for query in (
        "?tag=night:1",
        "?bug=watch-queue-filter",
        "?mine=yes",
        "?after=2026-01-01",
        "?text=night",
        "?submitter=local",
        "?bug=watch-queue-filter&tag=night:1",
    ):
        assert own in shown(query), query
    for query in ("?tag=night:2", "?state=failed&bug=x", "?before=2026-01-01", "?group=none"):
        assert own not in shown(query), query
    for query in ("?state=odd", "?after=yesterday", "?tag=%00", "?cursor=x", "?outcome=odd"):
        answer = here.get(f"/jobs{query}")
        assert (answer.status_code, 'role="alert"' in answer.text) == (200, True), query


def test_all_that_is_live_answers_polls(here: Browser, waiting: JobView) -> None:
    """A part of a page lacks what only the page has, such as its title."""
    paths = ["/", "/jobs", f"/jobs/{waiting.id}", "/bugs", "/workers", "/suitecache"]
    paths.append("/bugs/watch-queue-filter")
    assert {path: here.get(f"{path}?poll=yes").status_code for path in paths} == dict.fromkeys(
        paths, 200
    )


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/0", 404),
        ("/jobs/99999999999999999999999", 404),
        ("/jobs/x", 422),
        ("/jobs/1?step=-1", 404),
        ("/jobs/1/steps/0/files/none.log", 404),
        ("/jobs/1/steps/99/attempts/1/log", 404),
        ("/jobs?poll=yes&rows=<b>", 422),
        ("/?poll=yes&range=<b>", 422),
        ("/jobs?poll=yes&rows=" + "1," * 201, 422),
        ("/jobs/99999?poll=yes", 404),
        ("/jobs?" + "x" * 9000, 414),
    ],
)
def test_what_is_wrong_is_a_page_that_says_so(
    here: Browser, waiting: JobView, path: str, status: int
) -> None:
    answer = here.get(path)
    assert answer.status_code == status
    assert "<b>" not in answer.text
    # A way on; too long a query is refused before there are pages.
    assert status == 414 or '<nav aria-label="Pages">' in answer.text


def test_a_running_log_goes_on_and_is_taken_up_where_it_broke(
    here: Browser, site: Site, waiting: JobView
) -> None:
    path = f"/jobs/{waiting.id}/steps/0/attempts/1/log"
    text, is_open = "", True
    while is_open:
        answer = here.get(path, params={"from": len(text.encode())})
        text += answer.text
        if "held\n" in text and not site.showcase.let_go.is_set():
            site.showcase.let_go.set()
            site.client.wait(waiting.id)
        # Pages poll too: what they are answered may be a second old, and says so by this header.
        is_open = not site.showcase.let_go.is_set() or "Kgym-Log" in answer.headers
    assert text == site.client.log(waiting.id, 0, 1)


def test_an_artifact_is_handed_through(here: Browser, site: Site, waiting: JobView) -> None:
    site.showcase.let_go.set()
    site.client.wait(waiting.id)
    answer = here.get(f"/jobs/{waiting.id}/steps/0/artifacts/vmlinux")
    assert answer.content == b"\x7fELF" * 1000
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"


# --- with tokens --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A monitor of a scheduler that asks for tokens, and a token of each scope."""
    data = tmp_path_factory.mktemp("guarded")
    with Platform(data, work=False) as platform:
        with Client(platform.url) as client:
            job = client.submit(trial())
        tokens = {scope: _token(data, scope) for scope in ("admin", "submit", "read")}
        while httpx.get(f"{platform.url}/v1/caller", trust_env=False).status_code == 200:
            time.sleep(0.1)  # a scheduler looks every 5 s whether there are tokens
        with monitored(platform.url, tokens["read"]) as url:
            yield {"url": url, "job": job.id, "scheduler": platform.url, **tokens}


def _token(data: Path, scope: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli", "token", "create", f"a-{scope}", "--scope", scope],
        env={**os.environ, "KGYM_DATA": str(data)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def log_in(browser: Browser, token: str) -> httpx.Response:
    return browser.post("/login", data={"token": token, "next": "/jobs"})


def test_pages_lead_to_the_login_and_back(guarded: dict[str, Any]) -> None:
    with Browser(guarded["url"]) as browser:
        for path in ("/", "/jobs?state=failed", "/workers", "/nothing", "/jobs?poll=yes"):
            answer = browser.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/login?next=%2F")
        assert browser.post("/jobs/1/abort").status_code == 401
        assert browser.get("/healthz").status_code == 200
        answer = log_in(browser, guarded["submit"])
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert guarded["submit"] not in cookie
        assert browser.get("/jobs").status_code == 200


@pytest.mark.thorough
def test_who_may_only_read_sees_no_buttons(guarded: dict[str, Any]) -> None:
    path = f"/jobs/{guarded['job']}"
    seen = {}
    for scope in ("read", "submit", "admin"):
        with Browser(guarded["url"]) as browser:
            log_in(browser, guarded[scope])
            pages = [browser.get(page).text for page in ("/", "/jobs", path, "/workers")]
            seen[scope] = [f"{path}/abort" in pages[2], 'id="bulk"' in pages[1]]
            if scope == "read":
                key = browser.form_key("/jobs")
                assert browser.post(f"{path}/abort", data={"form_key": key}).status_code == 403
                assert browser.post("/workers/drain", data={"form_key": key}).status_code == 403
    assert seen == {"read": [False, False], "submit": [True, True], "admin": [True, True]}


def test_another_session_s_form_changes_nothing(guarded: dict[str, Any]) -> None:
    with Browser(guarded["url"]) as browser, Browser(guarded["url"]) as other:
        log_in(browser, guarded["admin"])
        log_in(other, guarded["admin"])
        key = browser.form_key("/jobs")
        data = {"form_key": key}
        assert other.post(f"/jobs/{guarded['job']}/abort", data=data).status_code == 403
        assert browser.post("/logout", data=data).status_code == 303
        assert browser.get("/jobs").status_code == 303
        assert other.get("/jobs").status_code == 200


@pytest.mark.parametrize("wanted", ["//evil.org", "https://evil.org", "/\\evil.org", "x", "/a\nb"])
def test_a_login_leads_to_no_other_site(guarded: dict[str, Any], wanted: str) -> None:
    with Browser(guarded["url"]) as browser:
        answer = browser.post("/login", data={"token": guarded["read"], "next": wanted})
        assert answer.headers["location"] == "/"


def test_a_wrong_token_opens_nothing(guarded: dict[str, Any]) -> None:
    with Browser(guarded["url"]) as browser:
        controls = ("a\x00b", "a\x1b[0m\x7f", "a\r\nb: c")
        for token in ("", "x", "kgym_1_x", "\u00e4", "x" * 600, *controls):
            answer = log_in(browser, token)
            assert answer.status_code == (401 if 0 < len(token) <= 500 else 422), token
            assert "set-cookie" not in answer.headers
        foreign = {"Sec-Fetch-Site": "cross-site"}
        data = {"token": guarded["read"]}
        assert browser.post("/login", data=data, headers=foreign).status_code == 403


@pytest.mark.attack
def test_tokens_cannot_be_guessed_quickly_at_the_login(guarded: dict[str, Any]) -> None:
    forwarded = {"X-Forwarded-For": "192.0.2.1"}
    with Browser(guarded["url"], **forwarded) as browser:
        guesses = [log_in(browser, f"kgym_1_{number}").status_code for number in range(31)]
        assert guesses == [401] * 30 + [429]
        assert log_in(browser, guarded["read"]).status_code == 303


def test_off_this_machine_the_session_needs_https(guarded: dict[str, Any]) -> None:
    with Browser(guarded["url"], Host="kgym.example.org") as browser:
        assert "https" in log_in(browser, guarded["read"]).text
        origin = {"Origin": "https://kgym.example.org"}
        answer = browser.post("/login", data={"token": guarded["read"]}, headers=origin)
        assert "Secure" in answer.headers["set-cookie"]


def test_a_monitor_needs_a_token_that_reads(guarded: dict[str, Any]) -> None:
    for token in (None, "kgym_1_x"):
        with (
            pytest.raises(UserError, match="the monitor needs a token"),
            monitored(guarded["scheduler"], token),
        ):
            pass
