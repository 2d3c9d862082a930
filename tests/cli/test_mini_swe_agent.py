"""A real agent, mini-swe-agent, by the program of the page; its model's endpoint has a script."""

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
from tests.crashfixer.test_models import Endpoint, Handle, Handler, answer, endpoint, refuse
from tests.docs.code_blocks import code_blocks

__all__ = ["endpoint"]
# Without what its models of providers need; the rest is ours, too.
PACKAGES = ("mini-swe-agent==2.4.6", "python-dotenv==1.1.1", "platformdirs==4.3.8")
KEY = "sk-a-key-that-no-command-may-see"
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"
# The agent's own client of an endpoint, at another address; that of LiteLLM takes 400 MB.
ENDPOINT = """
from minisweagent.models.openrouter_model import OpenRouterModel

class EndpointModel(OpenRouterModel):
    def __init__(self, url, **options):
        super().__init__(**options)
        self._api_url = url
"""


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


def scripted(endpoint: Endpoint, *turns: tuple[str, str]) -> dict[str, Any]:
    """Return the configuration of a model whose endpoint follows a script.

    A turn is what the agent must have been answered, and the next command. Otherwise the endpoint
    refuses, and the agent fails.
    """

    def turn(number: int, seen: str, command: str) -> Handle:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": str(number), "type": "function", "function": function}

        def handle(handler: Handler) -> None:
            last = str(handler.body["messages"][-1]["content"])
            wrong = refuse(400, f"{seen!r} is not in {last!r}")
            (answer(None, [call]) if seen in last else wrong)(handler)

        return handle

    endpoint.script = [turn(number, *each) for number, each in enumerate(turns)]
    url = f"http://127.0.0.1:{endpoint.server_port}/v1/chat/completions"
    model = {"model_class": "endpoint_model.EndpointModel", "model_name": "gpt-4o", "url": url}
    return {**model, "cost_tracking": "ignore_errors"}


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
    (tree.parent / "endpoint_model.py").write_text(ENDPOINT)
    config.write_text(json.dumps(model))
    done = subprocess.run(
        [python, script, tree, config],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tree.parent),
            "KGYM_SERVER": url,
            "OPENAI_API_KEY": KEY,
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
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
def test_an_agent_fixes_a_bug_through_run_kernel(
    python: Path, tree: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    data = tmp_path / "data"
    script = scripted(
        endpoint,
        ("Find the cause", "run_kernel"),
        ("nothing is changed", "env; cat /proc/*/environ"),
        ("PATH=", "sed -i 's/int a/int broken/' drivers/a.c && run_kernel"),
        ("does not compile: ", "sed -i 's/int broken/int useless/' drivers/a.c && run_kernel"),
        ("crash reproduced: ", "sed -i 's/int useless/int mends/' drivers/a.c && run_kernel"),
        ("crash resolved: ", DONE),
    )
    with Platform(data, work=False) as platform, working(platform, data, Told().answers):
        done = agent(python, tree, platform.url, script)
    assert done["exit_status"] == "Submitted"
    assert done["submission"].strip() == git(tree, "diff").strip()
    assert "+int mends;" in done["submission"]
    assert (done["calls"], KEY in done["told"]) == (6, False)
