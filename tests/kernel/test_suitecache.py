"""Builds from SuiteCache on the real kernel: what the shortcut links is what make links."""

from typing import Any

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import Edit, Patch
from kgym.bugs import bundle
from tests.conftest import kgym
from tests.kernel.machine import submitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BUG = "watch-queue-filter"
IMAGES = ("bzImage", "vmlinux", "System.map", "config")


def built(*patches: Patch) -> tuple[dict[str, Any], dict[str, str]]:
    """Build the shipped kernel with patches; return the result, and the images' SHA-256."""
    build = bundle.load(BUG).build
    spec = build.model_copy(update={"patches": [*build.patches, *patches], "cache": "fresh"})
    step = submitted(spec)["steps"][0]
    sums = {artifact["name"]: artifact["sha256"] for artifact in step["artifacts"]}
    return step["result"], {name: sums[name] for name in IMAGES}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(
            *("\tno_such_variable = 1;", "'no_such_variable' undeclared"),
            marks=pytest.mark.exhaustive,
        ),
        ("\tvoid no_such_function(void); no_such_function();", "no_such_function"),
    ],
    ids=["compile", "link"],
)
def test_what_does_not_compile_or_link_fails_in_the_shortcut_too(line: str, message: str) -> None:
    build = bundle.load(BUG).build
    start = "static void free_watch(struct rcu_head *rcu)\n{\n"
    broken = Patch(
        edits=[Edit(file="kernel/watch_queue.c", original=start, replacement=f"{start}{line}\n")]
    )
    spec = build.model_copy(update={"patches": [broken], "cache": "fresh"})
    _, job = kgym("job", "submit", "-", "--wait", stdin=JobRequest(steps=[spec]))
    failure = job["steps"][0]["failure"]
    assert failure["reason"] == "does_not_compile"
    assert message in failure["message"]


def test_the_shortcut_builds_the_same_kernel_as_make_byte_for_byte() -> None:
    # A comment in a makefile changes nothing, but only make can know that.
    line = "obj-y     = fork.o"
    remark = Patch(edits=[Edit(file="kernel/Makefile", original=line, replacement=f"#\n{line}")])
    short, short_sums = built()
    through_make, make_sums = built(remark)
    assert (short["shortcut"], through_make["shortcut"]) == (True, False)
    assert short_sums == make_sums
