"""The doors for other agents, on a real kernel: `run_kernel` and the MCP server. Minutes each."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgym.api.jobs import JobFilter
from kgym.api.states import State
from kgym.bugs import bundle
from kgym.client import AsyncClient
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.test_bug_source import git
from tests.cli.test_mcp import PAGE, Tools, tools
from tests.cli.test_mini_swe_agent import DONE, agent, scripted
from tests.cli.test_mini_swe_agent import python as python  # noqa: PLC0414 - a fixture
from tests.conftest import DATA, ROOT
from tests.crashfixer.test_models import Endpoint, endpoint
from tests.docs.code_blocks import code_blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.exhaustive]
__all__ = ["endpoint"]

BUG = bundle.load("watch-queue-filter")
FILE = "kernel/watch_queue.c"
FUNCTION = "watch_queue_set_filter"
COUNTED = "tf[i].type >= sizeof(wfilter->type_filter) * 8"
COPIED = "tf[i].type >= sizeof(wfilter->type_filter) * BITS_PER_LONG"
RIGHT = "tf[i].type >= WATCH_TYPE__NR"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A platform that has tried no patch yet, with the compiled kernels of the other tests."""
    data = tmp_path_factory.mktemp("data")
    (DATA / "cache").mkdir(parents=True, exist_ok=True)
    (data / "cache").symlink_to(DATA / "cache")
    with Platform(data) as platform:
        yield platform.url


def test_an_agent_fixes_the_kernel(
    url: str, python: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    """First as the page says, by hand; then the agent."""
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (block,) = (part.text for part in code_blocks(PAGE) if "bug source" in part.text)
    shown = subprocess.run(
        ["sh", "-ec", block],
        cwd=tmp_path,
        env={**os.environ, "KGYM_SERVER": url, "KGYM_DATA": str(DATA)},
        capture_output=True,
        check=False,
        text=True,
        timeout=3000,
    )
    assert f"crash reproduced: {BUG.file.title}" in shown.stdout, shown.stderr
    tree = tmp_path / "linux"
    # The endpoint gives the next command only for the answer that the last one must have.
    script = scripted(
        endpoint,
        ("Find the cause", "run_kernel"),
        (
            f"crash reproduced: {BUG.file.title}\nnothing is changed\n<crash_report>",
            f"grep -n 'tf.i..type' {FILE}",
        ),
        (COUNTED, f"{replaced(COUNTED, 'tf[i].type >= WATCH_TYPE_NR')} && run_kernel"),
        (
            "'WATCH_TYPE_NR' undeclared",
            f"{replaced('WATCH_TYPE_NR', 'WATCH_TYPE__NR')} && run_kernel",
        ),
        (f"crash reproduced: {BUG.file.title}\n", f"{replaced(COPIED, RIGHT)} && run_kernel"),
        ("crash resolved: ", DONE),
    )
    done = agent(python, tree, url, script)
    assert (done["exit_status"], done["calls"]) == ("Submitted", 6)
    assert done["submission"].strip() == git(tree, "diff").strip()
    # The agent has undone the bug, as the developers did.
    text = (tree / FILE).read_text()
    assert all(edit.original in text for edit in BUG.build.patches[0].edits)


def replaced(original: str, replacement: str) -> str:
    """Return a command that replaces a text of the file."""
    for char in r"[]*.":
        original = original.replace(char, f"\\{char}")
    return f"sed -i 's/{original}/{replacement}/' {FILE}"


@pytest.mark.anyio
async def test_the_tools_of_the_mcp_server_answer_from_the_kernel(url: str) -> None:
    async with tools(url) as call:
        await _source(call)
        wrong = edits((COUNTED, "tf[i].type >= WATCH_TYPE_NR"))
        failed, text = await call("check", edits=wrong)
        assert (failed, text.startswith(f"does not compile: {FILE}:")) == (False, True), text
        right = edits((COUNTED, RIGHT), (COPIED, RIGHT))
        compiles = f"compiles\nfunctions that it changes: {FUNCTION}"
        assert await call("check", edits=right) == (False, compiles)
        failed, text = await call("run_kernel")
        assert (failed, text.splitlines()[0]) == (False, f"crash reproduced: {BUG.file.title}")
        failed, text = await call("run_kernel", edits=right)
        assert (failed, text.startswith("crash resolved: ")) == (False, True), text
        await _debugged(call)
        failed, text = await call("trace")
        assert f"{FUNCTION}() [active]" in text, text
        assert text.startswith(f"calls of functions of {FILE}")
        assert (failed, text.count("</trace>")) == (False, 1)


async def _debugged(call: Tools) -> None:
    """Debug the kernel in all ways."""
    printed = (COUNTED, f'pr_info("kgym: type %u\\n", tf[i].type) < 0 || {COUNTED}')
    failed, text = await call("run_kernel", edits=edits(printed))
    assert (failed, text.startswith("crash reproduced: ")) == (False, True), text
    assert re.search(r"<console>\n.*kgym: type \d+", text), text
    printed = (COUNTED, printed[1].replace(COUNTED, RIGHT))
    failed, text = await call("run_kernel", edits=edits(printed, (COPIED, RIGHT)))
    assert text.startswith("does not crash, but this is no fix:\n- prints_debugging: "), text
    assert "amputation" not in text
    assert re.search(r"<console>\n.*kgym: type \d+", text), text
    program = '#include <stdio.h>\nint main(void) { puts("it ran"); return 3; }\n'
    failed, text = await call("run_program", program=program, edits=edits(printed))
    assert (failed, "it ran" in text, "crash_report" in text) == (False, True, False), text
    failed, text = await call("trace", functions=[FUNCTION])
    assert (failed, "_alloc" in text, f"{FUNCTION}()" in text) == (False, False, True), text
    failed, text = await call("layout", name="watch_filter")
    assert "nr_filters;" in text, text
    failed, text = await call("machine_code", function=FUNCTION, offset=16)
    assert f"{FUNCTION} {FILE}:" in text, text
    assert "CONFIG_WATCH_QUEUE=y" in (await call("kernel_config", part="watch"))[1]
    assert "<crash_report>" in (await call("console"))[1]


async def _source(call: Tools) -> None:
    """Look at the source in all ways."""
    failed, text = await call("search", pattern=r"sizeof\(wfilter->type_filter\) \*", glob=FILE)
    assert (failed, text.splitlines()[0]) == (False, "2 lines"), text
    failed, text = await call("symbol", name=FUNCTION)
    assert (failed, text.startswith("1 definitions, ")) == (False, True), text
    place = next(line for line in text.splitlines() if line.startswith(f"{FILE}:"))
    first, last = map(int, place.split(":")[1].split("-"))
    failed, text = await call("read_file", path=FILE, start=first, end=last)
    assert COUNTED in text
    assert COPIED in text
    assert FILE.rpartition("/")[2] in (await call("list_folder", path="kernel"))[1].splitlines()


@pytest.mark.anyio
async def test_nothing_runs_any_more_when_the_agent_has_gone(url: str) -> None:
    change = edits((COUNTED, f"{COUNTED} * 1"))
    async with AsyncClient(url) as client:
        async with tools(url) as call:
            waits = asyncio.create_task(call("run_kernel", edits=change))
            while not (running := [job.id async for job in client.jobs(RUNNING)]):
                assert not waits.done(), waits.result()
                await asyncio.sleep(0.2)
            waits.cancel()
        assert not [job.id async for job in client.jobs() if not job.state.final]
        states = {(await client.job(job)).state for job in running}
        assert State.ABORTED in states
        while any(worker.running for worker in await client.workers()):
            await asyncio.sleep(0.2)


RUNNING = JobFilter(state=State.RUNNING)


def edits(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    """Return changes of the file as the tools take them."""
    return [
        {"file": FILE, "original": original, "replacement": replacement}
        for original, replacement in pairs
    ]
