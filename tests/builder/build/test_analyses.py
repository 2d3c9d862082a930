"""cscope's database and the numbers of instructions, as artifacts of a build on request."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from kgym.api.steps import BuildArtifact, BuildSpec, Edit, Patch
from kgym.errors import InfrastructureError
from tests.builder.conftest import FakeLinux

pytestmark = pytest.mark.anyio

BOTH = (BuildArtifact.CSCOPE, BuildArtifact.INSTRUCTIONS)
SPLIT = Edit(
    file="kernel/fork.c",
    original="int main(void)\n{\n\treturn watch_filter(3)",
    replacement="__attribute__((noinline)) static int added(int n)\n{\n\treturn n * n;\n}\n\n"
    "int main(void)\n{\n\treturn added(fork_one(1)) + watch_filter(3)",
)


async def kept(linux: FakeLinux, spec: BuildSpec, folder: Path) -> bool:
    """Build; fetch both artifacts to a folder; return whether an equal build was known."""
    run = linux.new_run(spec)
    result = await linux.builder(run)
    keys = {artifact.name: artifact.key for artifact in run.artifacts}
    folder.mkdir()
    for name in BOTH:
        await run.storage.get(keys[name], folder / name)
    return result.memoised


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cscope") is None, reason="cscope is not installed")
async def test_a_patched_build_leaves_both(linux: FakeLinux, tmp_path: Path) -> None:
    patched = linux.spec.model_copy(update={"patches": [Patch(edits=[SPLIT])]})
    await linux.build(patched)
    asked = patched.model_copy(update={"analyses": ["instructions", "cscope"]})
    # A build without them does not answer for one with them, but the next with them is known.
    assert [await kept(linux, asked, tmp_path / name) for name in "ab"] == [False, True]
    folder = tmp_path / "a"
    with tarfile.open(folder / BuildArtifact.CSCOPE) as tar:
        tar.extractall(folder, filter="data")
    for query, expected in (("-3", "main"), ("-1", "added")):
        done = subprocess.run(
            ["cscope", "-d", "-L", query, "added"], cwd=folder, capture_output=True, check=True
        )
        assert done.stdout.decode().split()[:2] == ["kernel/fork.c", expected]
    head, *lines = (folder / BuildArtifact.INSTRUCTIONS).read_text().splitlines()
    assert head == "function\tbefore\tafter"
    counts = {name: (int(old), int(new)) for name, old, new in (row.split("\t") for row in lines)}
    assert counts["added"][0] == 0 < counts["added"][1]
    assert 0 < counts["main"][0] < counts["main"][1]
    assert counts["open_file"][0] == counts["open_file"][1] > 0


async def test_a_host_without_cscope_says_so_at_once(
    linux: FakeLinux, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = await linux.failure(linux.spec.model_copy(update={"analyses": ["cscope"]}))
    assert isinstance(error, InfrastructureError)
    assert (error.reason, error.details["tool"]) == ("missing_tool", "cscope")
