"""`kgym mcp`: the tools for one bug, called by the protocol's own client over stdio."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from kgym.api.jobs import JobRequest
from kgym.api.states import State
from kgym.api.steps import BuildSpec, StepKind, StepResult
from kgym.bugs import bundle as bugs
from kgym.client import AsyncClient
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_cli.agents.called_jobs import CalledJobs
from kgym_cli.platforms.embedded_platform import Platform
from kgym_crashfixer.search.tools import tools_of
from kgym_crashfixer.search.work import Purpose, Question
from tests.cli.conftest import Kgym
from tests.cli.test_check import DIFF
from tests.cli.test_check import bundle as bundle  # noqa: PLC0414 - a fixture
from tests.cli.test_run_kernel import Told
from tests.cli.test_run_kernel import tree as tree  # noqa: PLC0414 - a fixture
from tests.cli.test_sweep import BUG, diff
from tests.cli.worked import working
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "your-own-agent.md"
PATIENCE_SECONDS = 60.0
# The first message of a client (Model Context Protocol, "Lifecycle").
HELLO = json.loads(Path(__file__).with_name("mcp_hello.json").read_text())
pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


class Tools:
    """The tools, as a model sees them."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, name: str, /, **arguments: object) -> tuple[bool, str]:
        """Call a tool; return whether it is an error, and its text."""
        done = await self.client.call_tool(name, arguments)
        (content,) = done.content
        return bool(done.is_error), content.text  # type: ignore[union-attr]


@asynccontextmanager
async def tools(url: str, *words: object) -> AsyncIterator[Tools]:
    """Start `kgym mcp` as the page configures it, with more words, and connect to it."""
    (block,) = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    server = json.loads(block)["mcpServers"]["kgym"]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    server = StdioServerParameters(
        command=server["command"],
        args=[*server["args"], *map(str, words)],
        env={**dict.fromkeys(server["env"], url), "PATH": programs},
    )
    async with Client(stdio_client(server)) as client:
        yield Tools(client)


async def test_patches_are_tried_and_errors_are_answers(tmp_path: Path, tree: Path) -> None:
    data = tmp_path / "data"
    answers = {**Told().answers, StepKind.MINIMIZE: lost}
    with Platform(data, work=False) as platform, working(platform, data, answers):
        async with tools(platform.url, "--tree", tree) as call:
            assert bugs.load(BUG).file.title in (call.client.instructions or "")
            await _tried(call, tree)
            failed, text = await call("trace", files=["drivers/a.c"])
            assert (failed, text) == (False, "no trace: there is no dump")


def lost(run: StepContext) -> StepResult:
    raise UserError("no_dump", "there is no dump")


async def _tried(call: Tools, tree: Path) -> None:
    failed, text = await call("check", patch=diff("broken"))
    assert (failed, text.splitlines()[0]) == (False, "does not compile")
    assert "drivers/a.c:7: error: expected ';'" in text
    assert (await call("check", patch=diff("mends")))[1].startswith("compiles\n")
    edits = [{"file": "drivers/a.c", "original": "int a;", "replacement": "int mends;"}]
    failed, text = await call("run_kernel", patch=diff("mends"))
    assert (failed, text.startswith("crash resolved: ")) == (False, True)
    text = (await call("run_kernel", patch=diff("useless kgym: ")))[1]
    assert "\n<console>\n[ 1.0] kgym: 7\n</console>\n<crash_report>" in text
    assert "<program>" in (await call("reproducer"))[1]
    failed, text = await call("run_kernel", patch=diff("a"), edits=edits)
    assert (failed, "bad_option: give `patch` or `edits`, not both" in text) == (True, True)
    assert (await call("check"))[0]
    (tree / "drivers" / "a.c").write_text("int useless;\n")
    failed, text = await call("run_kernel")
    assert text.startswith("crash reproduced: KASAN: ")
    assert text.count("</crash_report>") == 1


async def test_the_source_is_read_as_the_bug_has_it(
    bundle: Path, tmp_path: Path, kgym: Kgym
) -> None:
    with Platform(tmp_path / "data") as platform:
        async with tools(platform.url, "--bug", bundle) as call:
            listed = {tool.name: tool for tool in (await call.client.list_tools()).tools}
            values = {"feedback": True}
            asked = Question(node="t0", purpose=Purpose.TOOL, values=values, temperature=0.2)
            edits = {"check", "run_kernel", "edit", "reset", "done"}
            theirs = {tool.name: tool for tool in tools_of(asked) if tool.name not in edits}
            assert listed.keys() == {"check", "run_kernel", *theirs}
            for name, tool in theirs.items():  # CrashFixer's are the same
                assert listed[name].description == tool.description
                assert listed[name].input_schema == tool.parameters
            failed, text = await call("read_file", path="kernel/watch_queue.c", start=8, end=11)
            assert not failed, text
            assert text.startswith("kernel/watch_queue.c: lines 8 to 11 of ")
            assert "10\t\tif (type >= 100)\n" in text
            answer = await call("definition", name="watch_filter")
            assert answer[1].startswith("function in kernel/watch_queue.c: lines ")
            assert "watch_queue.c" in (await call("list_folder", path="kernel"))[1].split()
            answer = await call("search", pattern=r"type\s*>=", glob="*.c")
            assert "kernel/watch_queue.c:10: " in answer[1]
            answer = await call("symbol", name="watch_filter")
            assert answer[1].startswith("1 definitions")
            failed, text = await call("check", patch=DIFF % "kind >= 2")
            assert (failed, text.startswith("does not compile: ")) == (False, True)
            assert "'kind' undeclared" in text
            edit = {"original": "type >= 100", "replacement": "type >= 2"}
            done = await call("check", edits=[{"file": "kernel/watch_queue.c", **edit}])
            assert done == (False, "compiles\nfunctions that it changes: watch_filter")
            failed, text = await call("read_file", path="kernel/watch_queue.c", first=2)
            assert text == "read_file has no argument 'first'; its arguments: path, start, end"
            failed, text = await call("no_such_tool")
            assert text.startswith("there is no tool 'no_such_tool'; the tools are check, ")
            for name, given in WRONG:
                failed, text = await call(name, **given)
                assert failed, text
                assert len(text) < 3000


async def test_mails_on_the_bug_are_a_tool_if_the_bundle_has_them(
    bundle: Path, tmp_path: Path
) -> None:
    mails = (ROOT / "tests" / "bugs" / "discussed.mbox").read_text().replace("{fix}", "")
    (bundle / "0.mbox").write_text(mails)
    table = '\n[discussion]\nmails = ["0.mbox"]\nbefore = 2022-09-03T00:00:00Z\n'
    with Platform(tmp_path / "data", work=False) as platform:
        async with tools(platform.url, "--bug", bundle) as call:
            assert (await call("discussion"))[1].startswith("there is no tool 'discussion'")
        with (bundle / "bug.toml").open("a") as file:
            file.write(table)
        async with tools(platform.url, "--bug", bundle) as call:
            assert (await call("discussion"))[1].startswith("1 mails\n<mails>\n1: 2022-09-02 ")
            failed, text = await call("discussion", mail=1)
            assert (failed, "Hello, syzbot found a crash" in text) == (False, True)
            assert (await call("discussion", mail=0))[0]


async def test_when_the_client_is_gone_all_that_it_asked_for_ends(
    tmp_path: Path, tree: Path
) -> None:
    data, events = tmp_path / "data", Told()
    with Platform(data, work=False) as platform, working(platform, data, events.answers):
        async with tools(platform.url, "--tree", tree) as call:
            assert "crash reproduced" in (await call("run_kernel"))[1]
            events.hold.clear()
            waits = asyncio.create_task(call("run_kernel", patch=diff("mends")))
            assert await asyncio.to_thread(events.held.wait, PATIENCE_SECONDS)
            _, text = await call("run_kernel", patch=diff("useless"), wait_seconds=1)
            assert "the same call again waits for it" in text
            waits.cancel()
        events.hold.set()
        async with AsyncClient(platform.url) as client:
            # A busy scheduler may still abort when the server has gone.
            while [job async for job in client.jobs() if not job.state.final]:
                await asyncio.sleep(0.1)
            states = Counter([job.state async for job in client.jobs()])
            assert states[State.ABORTED] >= 1
        # Whoever else wants the same has it.
        async with tools(platform.url, "--tree", tree) as call:
            assert (await call("run_kernel", patch=diff("mends")))[1].startswith("crash resolved")


def test_an_agent_that_was_killed_leaves_no_words_behind(tmp_path: Path) -> None:
    with Platform(tmp_path / "data", work=False) as platform:
        server = subprocess.Popen(
            [sys.executable, "-m", "kgym_cli", "mcp", "--server", platform.url, "--bug", BUG],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            text=False,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        with server:
            server.stdin.write(json.dumps(HELLO).encode() + b"\n")
            assert b"serverInfo" in server.stdout.readline()
            server.stdin.write(json.dumps(HELLO | {"id": 2, "method": "ping"}).encode() + b"\n")
            server.stdout.close()
            server.stdin.close()
            assert server.stderr is not None
            assert (server.stderr.read(), server.wait(60)) == (b"", 0)


@pytest.mark.timeout(240)
async def test_the_job_of_a_cancelled_call_ends_unless_another_waits_for_it(
    tmp_path: Path, fake_build: BuildSpec
) -> None:
    begun: list[int] = []
    with Platform(tmp_path / "data", work=False) as platform:
        async with AsyncClient(platform.url) as client, CalledJobs(client, pause=0.1) as jobs:

            async def work(key: str) -> None:
                job = await client.submit(JobRequest(steps=[fake_build]), key)
                await jobs.submitted(job)
                begun.append(job.id)
                await asyncio.Event().wait()

            async def call(key: str) -> asyncio.Task[None]:
                task, before = asyncio.create_task(jobs.call(work(key))), len(begun)
                await until(lambda: len(begun) > before)
                return task

            calls = [await call(key) for key in ("wanted", "left", "wanted")]
            wanted, left, _ = begun
            for call in calls[:2]:  # the second's pause ends last
                call.cancel()
            while (await client.job(left)).state is not State.ABORTED:
                await asyncio.sleep(0.05)
            assert (await client.job(wanted)).state is State.QUEUED
            calls[2].cancel()
            await asyncio.wait(calls)
        async with AsyncClient(platform.url) as client:
            assert (await client.job(wanted)).state is State.ABORTED


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.02)


WRONG: Sequence[tuple[str, dict[str, object]]] = [
    ("read_file", {"path": "kernel/watch_queu.c"}),
    ("read_file", {"path": "../../etc/passwd"}),
    ("read_file", {"path": "/etc/passwd"}),
    ("read_file", {"path": "kernel/watch_queue.c", "patch": "no patch"}),
    ("search", {"pattern": "("}),
    ("symbol", {"name": "a b"}),
    ("symbol", {"name": "x" * 100_000}),
    ("check", {"patch": "x" * (5 << 20)}),
    ("check", {"edits": [{"file": "a"}]}),
    ("run_kernel", {"wait_seconds": -1}),
    ("trace", {"files": ["../../etc/passwd"]}),
]
