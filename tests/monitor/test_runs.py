"""Pages of runs: a real agent service, a tape for its model, a platform that is made up."""

import asyncio
import html
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kgym.api.agent.nodes import Node, NodeOutcome
from kgym.api.agent.runs import RunState
from kgym_cli.platforms.embedded_platform import Platform
from kgym_crashfixer.runs.run_store import Batch, Created, StoredNode
from kgym_crashfixer.runs.runner import ends
from kgym_scheduler.database.connection import Database, upgrade
from kgym_scheduler.database.tokens import Tokens
from tests.crashfixer.agents import Guesser, request
from tests.demo.monitored import monitored
from tests.demo.screenshots import PATIENCE
from tests.demo.showcase import HOSTILE
from tests.monitor.agent_service import AgentService, agent_service, hostile
from tests.monitor.conftest import EACH_LOOK, Look, Reader, barriers
from tests.monitor.test_pages import Browser as Requests
from tests.tables import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE)
SHOWN = HOSTILE.replace("\x1b", "\u241b")


class Runs:
    """A monitor with an agent behind it, and the runs that its pages show."""

    def __init__(self, url: str, agent: AgentService) -> None:
        self.url, self.agent = url, agent
        # The one that was recorded.
        self.solved = 1
        self.attack = self._attacked()
        self.call = agent.do(agent.made.agent.calls(self.attack, "t0"))[0].name

    def _attacked(self) -> int:
        tape, self.agent.say["model"] = self.agent.say["model"], Guesser(hostile)
        run = self.agent.run()
        self.agent.end(run)
        self.agent.say["model"] = tape
        return run

    @property
    def pages(self) -> dict[str, str]:
        """Each kind of page there is."""
        first, second = self.solved, self.attack
        return {
            "list": "/runs",
            "none found": "/runs?bug=none",
            "run": f"/runs/{first}",
            "cycle": f"/runs/{first}?node=t0.0&hide=summary,no_patch",
            "hostile": f"/runs/{second}?node=t0",
            "questions": f"/runs/{second}/calls?text=limit",
            "question": f"/runs/{second}/call?name={self.call}",
            "to compare": "/runs/compare",
            "compared": f"/runs/compare?with={first}:t0&with={second}:t0",
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    with (
        Platform(folder, work=False) as platform,
        agent_service(folder, platform.url) as agent,
        monitored(platform.url, agent=agent.url) as url,
    ):
        yield Runs(url, agent)


@pytest.fixture
def here(runs: Runs) -> Iterator[Requests]:
    with Requests(runs.url) as requests:
        yield requests


@pytest.fixture
def reader(browser: Browser, runs: Runs) -> Iterator[Reader]:
    with Reader(browser, runs.url) as reader:
        yield reader


def test_every_page_keeps_the_policy(here: Requests, runs: Runs) -> None:
    for name, path in runs.pages.items():
        answer = here.get(path)
        assert answer.status_code == 200, name
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not re.search(
            r"<script(?![^>]* src=)|<style|<[^>]* (?:style|on[a-z]+)=", answer.text
        ), name
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text), name


@pytest.mark.parametrize(("path", "status", "message"), rows(__file__, "wrong_addresses.tsv"))
def test_what_is_wrong_is_a_page_that_says_so(
    here: Requests, path: str, status: str, message: str
) -> None:
    answer = here.get(path)
    assert answer.status_code == int(status)
    assert message in answer.text
    assert "<b>" not in answer.text


def test_a_run_has_its_budget_on_top_and_its_questions_lead_to_each_other(
    here: Requests, runs: Runs
) -> None:
    page = here.get(f"/runs/{runs.solved}").text
    assert re.search(r"of at most [^<]*tokens, [0-9,]+ kernels", page)
    assert page.index("of at most") < page.index('id="forest-title"')
    ask = runs.agent.made.agent.calls
    cycles = [runs.agent.do(ask(runs.solved, cycle)) for cycle in ("t0", "t0.0", "t0.0.0")]
    first = next(calls[0].name for calls in cycles if len(calls) > 1)
    asked = here.get(f"/runs/{runs.solved}/call?name={first}").text
    following = re.search('rel="next" href="([^"]+)"', asked)
    assert following is not None
    assert 'rel="prev"' in here.get(html.unescape(following[1])).text


def test_lists_are_filtered_and_two_things_compared(here: Requests, runs: Runs) -> None:
    def shown(query: str) -> set[str]:
        return set(re.findall('<tr id="run-([0-9]+)"', here.get(f"/runs{query}").text))

    assert str(runs.solved) in shown("?state=resolved&strategy=forest&model=made:up")
    assert shown("?cursor=2") == {"1"}
    assert shown("?bug=none") == set()
    listed = here.get("/runs?state=resolved").text
    assert re.search(r"\$[1-9][0-9.]*</td>", listed)
    patches = here.get("/runs/compare?with=1:t0:1&with=1:t0.0:1").text
    assert patches.count('class="added alone"') == 2
    assert here.get("/runs/compare?with=1:t0:1&with=1:t0:1").text.count(' alone"') == 0
    both = here.get(f"/runs/compare?with=1&with={runs.attack}").text
    assert both.count("Best fix") == 2


def test_without_an_agent_the_page_says_how_to_start_one(tmp_path: Path) -> None:
    with (
        Platform(tmp_path, work=False) as platform,
        monitored(platform.url) as url,
        monitored(platform.url, agent="http://127.0.0.1:1") as other,
        Requests(url) as alone,
        Requests(other) as lost,
    ):
        for monitor, message in ((alone, "kgym agent"), (lost, "no answer from the agent")):
            assert message in monitor.get("/runs").text
            answer = monitor.get("/runs/1")
            assert (answer.status_code, message in answer.text) == (503, True)


def test_a_reader_changes_runs_with_their_own_token(tmp_path: Path) -> None:
    made = asyncio.run(_tokens(tmp_path, read="read", alice="submit", bob="submit"))
    with (
        Platform(tmp_path, work=False) as platform,
        agent_service(tmp_path, platform.url) as agent,
        monitored(platform.url, made["read"], agent=agent.url) as url,
    ):
        agent.going.clear()
        run = agent.run("bob")
        seen = {}
        for who in ("read", "alice", "bob"):
            with Requests(url) as requests:
                assert requests.get(f"/runs/{run}").status_code == 303
                requests.post("/login", data={"token": made[who]})
                key = {"form_key": requests.form_key("/jobs")}
                assert requests.post(f"/runs/{run}/stop").status_code == 403
                buttons = f"/runs/{run}/stop" in requests.get(f"/runs/{run}").text
                seen[who] = buttons, requests.post(f"/runs/{run}/stop", data=key).status_code
                if who == "bob":
                    agent.going.set()
                    assert agent.end(run) is RunState.STOPPED
                    more = key | {"builds": "1", "hours": "0.5"}
                    answer = requests.post(f"/runs/{run}/resume", data=more)
                    assert answer.status_code == 303
                    assert agent.end(run) in {RunState.LIMITED, RunState.RESOLVED}
                    limits = agent.do(agent.made.agent.show(run)).limits
                    assert (limits.builds, limits.seconds) == (1, 1800)
        assert seen == {"read": (False, 403), "alice": (False, 403), "bob": (True, 303)}


async def _tokens(data: Path, **scopes: str) -> dict[str, str]:
    url = f"sqlite+aiosqlite:///{data / 'kgym.db'}"
    await upgrade(url)
    database = Database(url)
    known = Tokens(database)
    try:
        return {name: await known.create(name, [scope]) for name, scope in scopes.items()}
    finally:
        await database.close()


# --- in a browser -------------------------------------------------------------------------


def test_the_cycle_under_way_is_followed_though_none_is_chosen(here: Requests, runs: Runs) -> None:
    agent = runs.agent
    agent.going.clear()
    run = agent.run()
    deadline = time.monotonic() + 60
    while "under way" not in (
        text := here.get(f"/runs/{run}?poll=yes").text.partition("#opened")[2]
    ):
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    agent.going.set()
    agent.end(run)


def test_a_forest_is_followed_while_it_grows(reader: Reader, runs: Runs) -> None:
    agent = runs.agent
    page = reader.live("/runs")
    agent.going.clear()
    run = agent.run()
    row = page.locator(f"#run-{run}")
    expect(row).to_contain_text("running")
    row.get_by_role("link", name=str(run), exact=True).click()
    page.wait_for_selector("#live-mark[data-state='live']")
    page.evaluate("window.sameDocument = true")
    roots = page.locator("#forest > li")
    expect(roots).to_have_count(3)
    expect(page.locator("#forest ul > li")).to_have_count(0)
    expect(roots.first.locator("a.cycle").first).to_contain_text("hypothesis")
    roots.nth(1).locator("a.cycle").first.click()
    expect(page.locator("#cycle-title")).to_contain_text("t1")
    expect(page.locator("#cycle .steps")).to_contain_text("under way")
    agent.going.set()
    expect(page.locator("#forest a.is-resolved").first).to_be_visible()
    agent.end(run)
    expect(page.locator("#run-live")).to_have_attribute("data-state", "resolved")
    expect(page.locator("#fixes .diff .added").first).to_contain_text("LIMIT 16")
    expect(page.locator("#cycle .steps")).not_to_contain_text("under way")
    expect(page.locator("#cycle")).to_contain_text("The limit 99 is wrong.")
    expect(page.locator("#cycle .chip", has_text="rejected").first).to_be_visible()
    shown = set(page.locator("#forest a.cycle strong").all_inner_texts())
    assert shown == {node.name for node in agent.do(agent.made.agent.show(run)).nodes}
    assert page.evaluate("window.sameDocument") is True
    page.reload()
    expect(page.locator("#cycle-title")).to_contain_text("t1")
    expect(page.locator("#forest a.cycle[aria-current]")).to_contain_text("t1")


def test_a_run_is_stopped_and_resumed(reader: Reader, runs: Runs) -> None:
    runs.agent.going.clear()
    run = runs.agent.run()
    page = reader.live(f"/runs/{run}")
    page.get_by_role("button", name=f"Stop run {run}").click()
    expect(page.locator("#run-live")).to_have_attribute("data-state", "stopped")
    expect(page.get_by_role("button", name=f"Stop run {run}")).to_be_hidden()
    runs.agent.going.set()
    page.get_by_text("Resume this run").click()
    page.get_by_role("button", name=f"Resume run {run}").click()
    # To which end, is left to what it was doing when it stopped: a tape has no answer to a
    # question that differs because another one was lost.
    expect(page.locator("#run-live")).not_to_have_attribute("data-state", "stopped")


def test_trees_are_walked_by_keys_and_kinds_are_hidden(reader: Reader, runs: Runs) -> None:
    page = reader.live(f"/runs/{runs.solved}")
    tree = page.get_by_role("tree")
    first = tree.get_by_role("treeitem").first
    first.focus()
    focused = page.locator("a.cycle:focus")
    for key, name in (("ArrowRight", "t0.0"), ("ArrowDown", "t0.0.0"), ("ArrowLeft", "t0.0")):
        page.keyboard.press(key)
        expect(focused.locator("strong")).to_have_text(name)
    page.keyboard.press("Enter")
    expect(page.locator("#cycle-title")).to_contain_text("t0.0")
    expect(page).to_have_url(re.compile("node=t0.0$"))
    page.keyboard.press("Home")
    expect(focused.locator("strong")).to_have_text("t0")
    page.locator("summary", has_text="Hide steps").click()
    summaries = page.locator("#cycle .kind-summary")
    expect(summaries.first).to_be_visible()
    page.get_by_label("summaries").check()
    expect(summaries.first).to_be_hidden()
    page.locator("summary", has_text="Hide cycles").click()
    page.get_by_label("crashed", exact=True).check()
    about = page.locator("a.cycle.is-crashed .about").first
    assert about.evaluate("it => it.getBoundingClientRect().width") <= 1
    page.reload()
    expect(summaries.first).to_be_hidden()
    expect(page.get_by_label("crashed", exact=True)).to_be_checked()


def test_what_models_say_is_shown_as_text(reader: Reader, runs: Runs) -> None:
    page = reader.live(f"/runs/{runs.attack}?node=t0")
    expect(page.locator("#forest")).to_contain_text(SHOWN[:40])
    expect(page.locator("#cycle")).to_contain_text(f"{SHOWN} The limit 99 is wrong.")
    expect(page.locator("#cycle table.diff").first).to_contain_text("</pre></style>")
    page.goto(runs.pages["question"])
    page.locator("summary", has_text="Answer as it came").click()
    expect(page.locator("#said-answer .log-view")).to_contain_text(SHOWN)
    page.goto(f"/runs/{runs.attack}/calls?text=%3Cscript%3Edocument.title")
    expect(page.locator(".excerpt").first).to_contain_text(SHOWN[:40])
    page.get_by_role("link", name="a hypothesis").first.click()
    question = page.locator("#said-prompt")
    page.locator("summary", has_text="Question").click()
    question.get_by_label("Search the log").fill("#define LIMIT 99")
    expect(question.locator(".log-line.chosen")).to_contain_text("#define LIMIT 99")
    page.goto(f"/runs/compare?with={runs.attack}:t0&with={runs.solved}:t0")
    expect(page.locator(".sides")).to_contain_text(SHOWN)
    assert page.locator("main img").count() == 0
    assert "taken" not in page.title()


def test_an_export_is_one_file_that_asks_for_nothing(
    browser: Browser, here: Requests, runs: Runs, tmp_path: Path
) -> None:
    answer = here.get(f"/runs/{runs.attack}/export")
    assert "attachment" in answer.headers["content-disposition"]
    file = tmp_path / "run.html"
    file.write_bytes(answer.content)
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert faults == []
    assert page.locator("script, img, link, iframe").count() == 0
    view = runs.agent.do(runs.agent.made.agent.show(runs.attack))
    expect(page.locator("a.cycle")).to_have_count(len(view.nodes))
    expect(page.locator("#forest-title + .forest-box")).to_contain_text("t0")
    expect(page.locator("section.card").first).to_contain_text(f"{SHOWN} The limit 99 is wrong.")
    calls = runs.agent.do(runs.agent.made.agent.calls(runs.attack))
    expect(page.locator("summary", has_text="-hypothesis")).to_have_count(
        sum(call.purpose == "hypothesis" for call in calls)
    )
    assert page.locator("a.cycle").first.evaluate("it => getComputedStyle(it).display") == "grid"
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert policy is not None
    assert re.fullmatch(
        "default-src 'none'; style-src 'sha256-[^']+'; base-uri 'none'; form-action 'none'", policy
    )
    assert "taken" not in page.title()
    context.close()


def test_thousands_of_cycles_do_not_freeze_the_page(reader: Reader, runs: Runs) -> None:
    run = runs.agent.do(_grown(runs.agent, 3000))
    page = reader.live(f"/runs/{run}")
    expect(page.locator("#forest a.cycle")).to_have_count(3000)
    took = page.evaluate(
        """async () => {
          const begun = performance.now();
          document.querySelector("#forest > li:last-child a.cycle").click();
          await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          return performance.now() - begun;
        }"""
    )
    expect(page.locator("#cycle-title")).to_contain_text("t29")
    assert took < 2000  # milliseconds; 100 on a machine that does nothing else


async def _grown(agent: AgentService, count: int) -> int:
    """Store a run of so many cycles in trees of a hundred; return its number."""
    store, wanted = agent.made.store, request()
    created = Created(
        key="k", strategy="forest", submitter="local", request=wanted, created_at=datetime.now(UTC)
    )
    run, _ = await store.create(created)
    writer = await store.take(run, wanted)
    nodes = []
    for number in range(count):
        tree, place = divmod(number, 100)
        name = f"t{tree}" + "".join(f".{digit}" for digit in _path(place))
        parent = name.rpartition(".")[0] or None
        node = Node(
            name=name, parent=parent, depth=name.count(".") + 1, hypothesis="It is so. " * 9
        )
        node.outcome = NodeOutcome.CRASHED
        nodes.append(StoredNode(number, node.model_dump(mode="json")))
    batch = Batch(nodes=nodes)
    ends(batch, RunState.UNRESOLVED, "over")
    await writer.write(batch)
    await store.release(run, writer)
    return run


def _path(place: int) -> list[int]:
    """Return the way from the root to a node of a tree in which each has three children."""
    path: list[int] = []
    while place:
        place, digit = divmod(place - 1, 3)
        path.insert(0, digit)
    return path


@pytest.mark.parametrize("look", EACH_LOOK)
def test_every_page_is_accessible(browser: Browser, runs: Runs, look: Look) -> None:
    with Reader(browser, runs.url, look) as reader:
        violations = {}
        for name, path in runs.pages.items():
            page = reader.open(path)
            page.wait_for_function("!document.querySelector('.log-window:not([data-filled])')")
            violations[name] = barriers(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= look.width, f"{name} is {wide} wide"
    assert {name: faults for name, faults in violations.items() if faults} == {}
