"""A real agent, mini-swe-agent, by the program of the page, with a model that follows a script."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.test_run_kernel import Told, git
from tests.cli.test_run_kernel import tree as tree  # noqa: PLC0414 - a fixture
from tests.cli.worked import working
from tests.conftest import ROOT
from tests.docs.code_blocks import code_blocks

# Without what its models of providers need; the rest is ours, too.
PACKAGES = ("mini-swe-agent==2.4.6", "python-dotenv==1.1.1", "platformdirs==4.3.8")
KEY = "sk-a-key-that-no-command-may-see"
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with mini-swe-agent."""
    folder = tmp_path_factory.mktemp("agent")
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    (here,) = (path for path in sys.path if Path(path, "pydantic").is_dir())
    (site / "ours.pth").write_text(f"{here}\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    done = subprocess.run(
        [*pip, "--no-deps", "--retries", "1", "--timeout", "10", "-q", *PACKAGES],
        capture_output=True,
        check=False,
        text=True,
        timeout=200,
    )
    if done.returncode:
        pytest.skip(f"mini-swe-agent cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / "bin" / "python"


def answer_of(*commands: str) -> dict[str, Any]:
    """Return the configuration of a model that gives these commands, one after the other."""
    outputs = [
        {"role": "assistant", "content": command, "extra": {"actions": [{"command": command}]}}
        for command in commands
    ]
    return {"model_class": "deterministic", "model_name": "script", "outputs": outputs}


def agent(python: Path, tree: Path, url: str, model: dict[str, Any]) -> dict[str, Any]:
    """Run the page's program; return what it printed last, with what the commands answered."""
    (program,) = (
        block.text
        for block in code_blocks(ROOT / "docs" / "your-own-agent.md")
        if block.language == "python"
    )
    script, config = tree.parent / "agent.py", tree.parent / "model.json"
    script.write_text(
        program + "for one in agent.messages:\n    print(json.dumps(one), file=sys.stderr)\n"
    )
    config.write_text(json.dumps(model))
    done = subprocess.run(
        [python, script, tree, config],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tree.parent),
            "KGYM_SERVER": url,
            "OPENAI_API_KEY": KEY,
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_GLOBAL_CONFIG_DIR": str(tree.parent / "config"),
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answer, "told": done.stderr}


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_agent_fixes_a_bug_through_run_kernel(python: Path, tree: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    script = answer_of(
        "run_kernel",
        "env; cat /proc/*/environ",
        "sed -i 's/int a/int broken/' drivers/a.c && run_kernel",
        "sed -i 's/int broken/int useless/' drivers/a.c && run_kernel",
        "sed -i 's/int useless/int mends/' drivers/a.c && run_kernel",
        DONE,
    )
    with Platform(data, work=False) as platform, working(platform, data, Told().answers):
        done = agent(python, tree, platform.url, script)
    assert done["exit_status"] == "Submitted"
    assert done["submission"].strip() == git(tree, "diff").strip()
    assert "+int mends;" in done["submission"]
    assert (done["calls"], KEY in done["told"]) == (6, False)
    answers = ("does not compile: ", "crash reproduced: ", "crash resolved: ")
    for words in ("nothing is changed", *answers):
        assert words in done["told"]
