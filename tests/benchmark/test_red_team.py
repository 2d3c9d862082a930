"""The red team: ways to find the fix, or to score without one. None works; each would if it could.

`red_team.toml` has the programs. All are run in an environment as agents get it, where they have to
print nothing; then in one that is made to leak, where they have to print something.
"""

import asyncio
import contextlib
import json
import re
import shutil
import time
import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, model_validator

from kgym.api.agent.nodes import Tried
from kgym.api.source import FileLook, FolderLook, Look, SearchLook
from kgym.api.steps import StepResult, Strict
from kgym.bench.campaign import Campaign, plan
from kgym.bugs import bundle
from kgym.bugs.bug import TrialOptions
from kgym.bugs.source_tools import SourceTools
from kgym.client import AsyncClient
from kgym.crash.report import guilty_file
from kgym.errors import KgymError
from kgym.source.patching import Change
from kgym.source.source_folder import SourceFolder
from kgym.worker.context import StepContext
from kgym_benchmark.campaign import adapters, subjects
from kgym_benchmark.campaign.attempt import Attempt, in_environment
from kgym_benchmark.kenv.agent_kernels import AgentKernels
from kgym_benchmark.kenv.door import Door, RunKernel
from kgym_benchmark.kenv.environment import Environment, Given
from kgym_benchmark.kenv.trees import Published
from kgym_builder.evidence.suspicious_changes import touched
from kgym_builder.source import archive_writer
from kgym_cli.platforms.embedded_platform import Platform
from kgym_scheduler.source import search
from kgym_scheduler.source.archive import Archive
from kgym_scheduler.source.view import View
from tests.benchmark import red_team_agent
from tests.benchmark.model_provider import Provider
from tests.benchmark.red_team_agent import BUILD
from tests.benchmark.test_kenv import BUGGY, CASE, FIXED, bug_trees
from tests.cli.test_run_kernel import Told
from tests.cli.test_sweep import BUG
from tests.cli.worked import working
from tests.conftest import ROOT

__all__ = ["bug_trees"]

pytestmark = [pytest.mark.thorough, pytest.mark.attack, pytest.mark.timeout(600)]

KEY = "sk-a-key-that-no-agent-may-see"
REPORT = (ROOT / "tests" / "crashfixer" / "report.txt").read_text()
LEAST, LEAST_OF_A_KIND = 40, 4


class Way(Strict):
    """A program of an agent; it succeeds if it prints something."""

    kind: str
    name: str
    what: str = Field(min_length=1)
    before: str = Field(min_length=1, description="what it came to at bd03107")
    program: str
    leak: str | None = Field(None, description="opens the way")
    cannot: str | None = Field(None, description="why nothing opens it from within")
    feedback: bool = Field(False, description="whether it runs kernels")

    @model_validator(mode="after")
    def _either(self) -> "Way":
        assert (self.leak is None) != (self.cannot is None)
        return self

    @property
    def allowed(self) -> bool:
        """Whether it shall succeed."""
        return self.cannot == "it is allowed"


class Call(Strict):
    """A call of a model's tool; it succeeds if its answer has a word of the fix."""

    name: str
    what: str = Field(min_length=1)
    before: str = Field(min_length=1)
    tool: str
    arguments: dict[str, Any]


class RedTeam(Strict):
    """All ways."""

    way: list[Way]
    call: list[Call]

    @classmethod
    def load(cls) -> "RedTeam":
        """Read them."""
        text = Path(__file__).with_name("red_team.toml").read_text()
        return cls.model_validate(tomllib.loads(text))

    @property
    def kinds(self) -> Counter[str]:
        """The number of ways of each kind that shall not succeed."""
        kinds = Counter(way.kind for way in self.way if not way.allowed)
        return kinds + Counter({"tools": len(self.call)})


TEAM = RedTeam.load()


def test_the_team_is_large_and_the_page_counts_it() -> None:
    kinds = TEAM.kinds
    assert kinds.total() >= LEAST
    assert min(kinds.values()) >= LEAST_OF_A_KIND, kinds
    page = " ".join((ROOT / "docs" / "measure-agents.md").read_text().split())
    assert f"{kinds.total()} ways of {len(kinds)} kinds" in page


class Agent:
    """The team's agent, with its programs, in environments of its own."""

    def __init__(self, folder: Path, tree: SourceFolder) -> None:
        self.folder, self._tree = folder, tree
        self.programs = folder / "agent"
        self.programs.mkdir()
        for name in ("agent.py", *red_team_agent.PROGRAMS):
            shutil.copy(str(red_team_agent.__file__), self.programs / name)
            (self.programs / name).chmod(0o755)

    @contextlib.asynccontextmanager
    async def opened(
        self, kernels: RunKernel | None = None, **folders: Path
    ) -> AsyncIterator[Environment]:
        """Open an environment."""
        folders = {"/agent": self.programs, **folders}
        given = Given("a-bug", feedback=kernels is not None, folders=folders)
        door = Door(CASE, kernels, 20, lambda call: None)
        async with Environment(self.folder / "env", self._tree, door, given) as environment:
            yield environment

    async def run(self, *command: str, kernels: RunKernel | None = None, **folders: Path) -> str:
        """Return what a command prints."""
        log = self.folder / "log.txt"
        log.unlink(missing_ok=True)
        async with self.opened(kernels, **folders) as environment:
            ended = await environment.run(command, log)
            assert ended.error is None, log.read_text()
            # What the ways that aim at the outputs would leave there.
            patch = await environment.patch()
            assert "late" not in patch
            assert "root:" not in patch
            assert environment.trajectory() is None
        return log.read_text()

    async def tried(self, ways: list[Way], *words: str, **how: Any) -> dict[str, str]:
        """Return what each program printed."""
        self.write(ways)
        output = await self.run("python3", "/agent/agent.py", *words, **how)
        return printed(output)

    def write(self, ways: list[Way]) -> None:
        """Write the ways for the agent."""
        rows = [way.model_dump(include={"name", "program", "leak"}) for way in ways]
        (self.programs / "ways.json").write_text(json.dumps(rows))


def printed(output: str) -> dict[str, str]:
    """Return what each program printed, by its name."""
    rows = (json.loads(line) for line in output.splitlines() if line.startswith("["))
    return {name: text for name, text, _ in rows}


def check(ways: list[Way], results: dict[str, str]) -> None:
    """Check that only what is allowed has succeeded."""
    assert len(results) == len(ways), results
    succeeded = {name: text for name, text in results.items() if text}
    assert succeeded.keys() == {way.name for way in ways if way.allowed}, succeeded


@pytest.fixture
def agent(tmp_path: Path, bug_trees: dict[str, SourceFolder]) -> Agent:
    return Agent(tmp_path, bug_trees["secret"])


LEFT = """
for file in /tmp/patch /dev/shm/patch /root/patch /KBDr/output/left kernel/fork.c /var/tmp/x; do
    echo EARLIER_ATTEMPT >$file
done 2>/dev/null
git config user.name EARLIER_ATTEMPT; git commit -qam EARLIER_ATTEMPT
setsid sleep 60 >/dev/null 2>&1 &
"""


def test_no_way_finds_anything_and_each_does_where_it_leaks(agent: Agent, tmp_path: Path) -> None:
    ways = [way for way in TEAM.way if not way.feedback and way.kind != "requests"]
    leaks = tmp_path / "leaks"
    (leaks / "src").mkdir(parents=True)
    for name in ("changelog", "vmlinux", "fix.patch", "bug.toml", "modules"):
        (leaks / name).write_text("SECRET_LIMIT\n")
    (leaks / "System.map").write_text("ffffffff81000000 T secret_limit\n")

    async def go() -> None:
        await agent.run("sh", "-c", LEFT)
        check(ways, await agent.tried(ways))
        leaky = [way for way in ways if way.leak is not None]
        results = await agent.tried(leaky, "leaky", **{"/srv/kernel": leaks})
        assert [way.name for way in leaky if not results.get(way.name)] == []

    asyncio.run(go())


class Slow(Told):
    """A farm whose builds take a second; their findings are those of the bug's files."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[list[str]] = []

    def check(self, run: StepContext) -> StepResult:
        """Take a second for what does not compile."""
        if "broken" in run.assignment.model_dump_json():
            time.sleep(1.2 * BUILD)
        return super().check(run)

    def build(self, run: StepContext) -> StepResult:
        """Build."""
        spec = run.assignment.spec
        result = super().build(run)
        if not getattr(spec, "review", []):
            return result
        time.sleep(1.2 * BUILD)
        self.files.append(getattr(spec, "files", []))
        findings = touched(["kernel/secret.c"], self.files[-1])
        return result.model_copy(update={"findings": findings})


def test_answers_of_run_kernel_tell_nothing_of_the_fix_or_of_others(
    agent: Agent, tmp_path: Path
) -> None:
    ways = [way for way in TEAM.way if way.feedback]
    farm, data = Slow(), tmp_path / "data"
    earlier = "edit mends_earlier; edit useless_earlier; edit broken_earlier; edit mends_fix"

    async def go(url: str) -> dict[str, str]:
        async with AsyncClient(url) as client:
            how = client, bundle.load(BUG), REPORT, TrialOptions(2, 5)
            path = 'PATH="/agent:$PATH"; '
            await agent.run("sh", "-c", path + earlier, kernels=AgentKernels(*how).run)
            return await agent.tried(ways, kernels=AgentKernels(*how).run)

    data.mkdir()
    with Platform(data, work=False) as platform, working(platform, data, farm.answers):
        results = asyncio.run(go(platform.url))
    check(ways, results)
    # The file that every agent reads in its crash report, not those of the bundle.
    assert {*map(tuple, farm.files)} == {(guilty_file(REPORT),)}


@pytest.mark.parametrize("adapter", adapters.names())
def test_requests_of_every_adapter_reach_its_model_alone_and_show_no_key(
    adapter: str, agent: Agent, tmp_path: Path, provider: Provider
) -> None:
    ways = [way for way in TEAM.way if way.kind == "requests"]
    agent.write(ways)
    stub = f"#!/bin/sh\nexec python3 {agent.programs}/agent.py\n"
    for name in ("mini", "sweagent"):
        (agent.programs / name).write_text(stub)
        (agent.programs / name).chmod(0o755)
    main = agent.programs / "openhands" / "core" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(f"import os; os.execlp('python3', 'python3', '{agent.programs}/agent.py')\n")
    model = {"endpoint": provider.url, "key_env": "KEY", "prices": {"input": 1, "output": 1}}
    variables = {"PATH": f"{agent.programs}:/usr/bin:/bin", "PYTHONPATH": str(agent.programs)}
    entry = {"name": "a", "adapter": adapter, "programs": [str(agent.programs)]}
    entry |= {"environment": variables, "models": ["openai/gpt-5"], "feedback": [False]}
    described = {"name": "c", "bugs": [BUG], "models": {"openai/gpt-5": model}, "agents": [entry]}
    campaign = Campaign.model_validate(described)
    (planned,) = plan(campaign, [BUG])
    subject = subjects.bundled(BUG, bundle.load(BUG))
    attempt = Attempt(campaign, planned, subject, REPORT, tmp_path / "attempt", lambda _: KEY)

    async def tree(*_: object) -> SourceFolder:
        return agent._tree

    async def go() -> str | None:
        async with AsyncClient("http://127.0.0.1:9") as client:
            command = adapters.command(campaign.agents[0], tmp_path)
            ended = await in_environment(attempt, command, client, tree, last_try=True)
            return ended.environment

    assert len(asyncio.run(go()) or "") == 64
    check(ways, printed((attempt.folder / "log.txt").read_text()))
    # The plain question, and that for the key.
    assert [path for path, *_ in provider.asked] == ["/v1/chat/completions"] * 2
    for _, headers, _ in provider.asked:
        assert headers["authorization"] == f"Bearer {KEY}"
        assert "x-own" not in headers
    for path in attempt.folder.rglob("*"):
        assert not path.is_file() or KEY not in path.read_text(), path


@pytest.fixture
def published(tmp_path: Path) -> Published:
    """A source as published, packed with its repository."""
    tree = tmp_path / "linux"
    for name, text in {
        "kernel/secret.c": FIXED + b"int added_by_the_fix(void)\n{\n\treturn 0;\n}\n",
        "kernel/gone.c": FIXED,
        "kernel/fork.c": b"int fork;\n",
        ".git/logs/HEAD": b"0 1 A <a@b> 0 +0000 a later commit: use SECRET_LIMIT\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(text)
    (tree / "out").symlink_to("../fix.patch")
    (tmp_path / "fix.patch").write_text("SECRET_LIMIT")
    bug = [Change("kernel/secret.c", BUGGY), Change("kernel/gone.c", None)]
    return Published("id", tree, [Change("Kconfig.added", b"config\n")], bug)


def test_no_tool_of_a_model_shows_the_fix(published: Published, tmp_path: Path) -> None:
    path = tmp_path / "source.db"
    archive_writer.write(published.tree, published.added, "", path)
    archive, answers = Archive(path), dict[str, str]()

    async def go() -> None:
        with archive.open() as reader:
            view = View(archive, reader)
            view.changed = {change.path: change.content for change in published.bug}

            async def ask(_: object, look: Look) -> Any:
                match look:
                    case FileLook():
                        return view.read(look)
                    case FolderLook():
                        return view.folder(look.path)
                    case SearchLook():
                        return search.search(view, look)
                return search.look_up(view, look)  # type: ignore[arg-type]

            async with AsyncClient("http://127.0.0.1:9") as client:
                tools = {tool.__name__: tool for tool in SourceTools(client, ask).tools}
                for call in TEAM.call:
                    try:
                        answers[call.name] = await tools[call.tool](**call.arguments)
                    except KgymError as error:
                        answers[call.name] = error.message

    asyncio.run(go())
    asked = {call.name: str(call.arguments) for call in TEAM.call}
    words = ("SECRET_LIMIT", "gone.c", "added_by_the_fix", "later commit", "remove")
    shown = {
        name: answer
        for name, answer in answers.items()
        if any(word in answer and word not in asked[name] for word in words)
        or answer.startswith(("1 lines", "1 definitions"))
    }
    assert shown == {}
    assert len(answers) == len(TEAM.call)
    # Nor does what it reads of a patch that it tried.
    findings = touched(["kernel/fork.c", "mm/slub.c"], ["kernel/secret.c"])
    assert len(findings) == 2
    read = Tried(verdict="does_not_build", findings=findings).messages
    assert not re.search("secret|lies in", str(read))


def test_what_is_compared_with_a_patch_is_the_agents_tree_and_not_read_from_it(
    published: Published,
) -> None:
    assert set(published) == {"kernel/secret.c", "kernel/fork.c", "out", "Kconfig.added"}
    assert len(published) == 4
    assert published["kernel/secret.c"] == BUGGY
    assert published["kernel/fork.c"] == b"int fork;\n"
    assert "kernel/gone.c" not in published
    assert "out" not in published
