"""Real programs of syzkaller's crash real kernels, and prove fixes. Minutes each."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import BuildSpec, Dictionary, Edit, Patch, ReproduceSpec, StepSpec
from kgym.api.syz_program import call_names
from kgym.bugs import bundle as bug
from kgym.bugs.bug import TrialOptions
from kgym_vmmanager.variants.syz_mutator import Mutator
from tests.conftest import ROOT, kgym
from tests.kernel.test_bugs import assert_resolved
from tests.kernel.test_variants import BOUND, FIXED

SOURCES = ROOT.parent / "shared" / "data" / "syzkaller"
DEVICES = Path(__file__).with_name("devices")
COMMIT = "1d849ab4d892af13a249f75628790b47e42b7c74"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not SOURCES.is_dir(), reason="syzkaller's source is not beside the checkout"
    ),
    pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go (golang-go)"),
]


@pytest.fixture(scope="module", autouse=True)
def built() -> dict[str, Any]:
    """Syzkaller, built from its source where workers of this checkout find it."""
    (tarball,) = SOURCES.glob("syzkaller-*.tar.xz")
    status, answer = kgym("syzkaller", "build", tarball, "--commit", COMMIT)
    assert (status, answer["commit"]) == (0, COMMIT), answer
    return answer


@pytest.mark.exhaustive
def test_a_program_that_runs_once_shows_a_bug_and_proves_its_fix() -> None:
    status, outcome = kgym(
        "bug", "reproduce", "--no-variants", "watch-queue-filter", "--repro", "syz"
    )
    assert_resolved(status, outcome, [bug.load("watch-queue-filter").file.title])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("futex-op-shift", "syz", id="repeated"),
        pytest.param("shm-remap-removed", "syz", id="threaded"),
        pytest.param("watch-queue-filter", "all", id="with-the-C-program"),
    ],
)
def test_programs_of_other_kinds_show_a_bug_and_prove_its_fix(name: str, kind: str) -> None:
    status, outcome = kgym("bug", "reproduce", "--no-variants", name, "--repro", kind)
    assert_resolved(status, outcome, [bug.load(name).file.title])


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", sorted(DEVICES.glob("*.syz")), ids=lambda path: path.stem)
def test_a_program_finds_the_devices_that_it_needs(program: Path) -> None:
    request = bug.load("futex-op-shift").run_by("syz").job(None)
    steps: list[StepSpec] = []
    for step in request.steps:
        if isinstance(step, BuildSpec):
            fragments = [*step.config.fragments, DEVICES.with_suffix(".config").read_text()]
            config = step.config.model_copy(update={"fragments": fragments})
            steps.append(step.model_copy(update={"config": config, "patches": []}))
        elif isinstance(step, ReproduceSpec):
            reproducer = step.reproducer.model_copy(update={"text": program.read_text()})
            steps.append(step.model_copy(update={"reproducer": reproducer, "measure": None}))
        else:
            steps.append(step)
    changed = request.model_copy(update={"steps": steps})
    _, job = kgym("job", "submit", "-", "--wait", stdin=changed)
    dropped = [step["result"].get("dropped_symbols", []) for step in job["steps"]]
    assert not any(dropped), dropped
    calls = len(call_names(program.read_text()))
    for instance in job["steps"][-1]["result"]["instances"]:
        assert instance["outcome"] == "survived", instance
        # The guest had what the header requires, and each call came back.
        assert f"{calls} of {calls} calls came back at first" in instance["detail"], instance


@pytest.mark.anyio
async def test_the_mutator_makes_the_same_variants_each_time(
    built: dict[str, Any], tmp_path: Path
) -> None:
    assert built["lacks"] == ""
    program = tmp_path / "program"
    program.write_text(bug.load("futex-op-shift").run_by("syz").reproducers[0].text)
    words = Dictionary(values=[0x20], fields=[(12, 12)])
    binary = Path(built["folder"], "syz-mutate")
    mutator = await Mutator.prepared(binary, program, words, tmp_path / "mutator")
    orders = [(0, 300, 7), (1 << 40, 1, 7), (0, 300, 1)]
    first, second = [(await mutator.make(orders)) for _ in range(2)]
    assert first.variants == second.variants
    assert (len(first.base), first.lacks) == (1, "")
    assert len(first.variants) > 550
    last = [variant.program[-1] for variant in first.variants.values()]
    # The dictionary's word in the field of the operand that is shifted by.
    assert any(re.search(r"futex\(.*0x80020000\)", call) for call in last)
    # Most variants make the same call, and each is another one.
    assert sum(call.startswith("futex(") for call in last) > 400
    assert len(set(last)) > 200


def tried(largest: int) -> dict[str, Any]:
    """Try a fix that allows operands up to `largest` on the syz program; return its result."""
    loaded = bug.load("futex-op-shift").run_by("syz")
    edit = Edit(file="kernel/futex/waitwake.c", original=BOUND, replacement=FIXED % largest)
    request = loaded.job(Patch(name="fix", edits=[edit]), TrialOptions(variants=True))
    _, job = kgym("job", "submit", "-", "--wait", stdin=request)
    result: dict[str, Any] = job["steps"][-1]["result"]
    assert result["verdict"] == "no_crash", result
    return result


@pytest.mark.exhaustive
def test_a_variant_of_a_syz_program_shows_a_bound_that_is_off_by_one() -> None:
    result = tried(32)
    blocking = [finding for finding in result["findings"] if finding["severity"] == "blocking"]
    assert [finding["reason"] for finding in blocking] == ["variant_crashes"], result
    (crash,) = result["variants"]["crashes"]
    assert crash["seed"] is not None
    assert "futex (call 1) is " in blocking[0]["message"]


@pytest.mark.exhaustive
def test_variants_of_a_syz_program_pass_the_right_bound() -> None:
    result = tried(31)
    assert [each for each in result["findings"] if each["severity"] == "blocking"] == [], result
    variants = result["variants"]
    assert (variants["missing"], variants["crashes"]) == ("", []), variants
    assert variants["ran"] > 200
    assert variants["same"] == variants["compared"] >= 10
