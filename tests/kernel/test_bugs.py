"""Real kernels with real bugs: each crashes, and its fix is proven. Minutes each."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from kgym import configs
from kgym.api.outcomes import Outcome
from kgym.bugs import bundle as bug
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from tests.conftest import DATA, ROOT, chosen, kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SYZBOT = ROOT.parent / "shared" / "data" / "syzbot_bugs"
FOLDERS = sorted(SYZBOT.glob("*/"))
DEMO = "watch-queue-filter"


def assert_resolved(status: int, outcome: dict[str, Any], titles: list[str]) -> None:
    before, after = outcome["before"], outcome["after"]
    assert (before["verdict"], after["verdict"]) == ("same_crash", "no_crash"), outcome
    assert before["title"] in titles
    assert before["crashed"] >= 1
    assert after["completed"] == after["requested"]
    assert (status, outcome["resolved"]) == (0, True)
    assert outcome["seconds"]["total"] > 0


def test_the_demo_crashes_a_kernel_and_proves_the_fix() -> None:
    status, outcome = kgym("demo")
    assert outcome["bug"] == DEMO
    assert_resolved(status, outcome, [bug.load(DEMO).file.title])


@pytest.mark.exhaustive
def test_the_vms_of_a_running_step_are_seen() -> None:
    loaded, seen = bug.load(DEMO), dict[str, set[str]]()
    with Platform(DATA) as platform, Client(platform.url) as client:
        job = client.submit(loaded.job(loaded.fix))
        while not (view := client.job(job.id)).state.final:
            for step in view.steps:
                for vm in step.progress.vms if step.progress else []:
                    seen.setdefault(vm.state, set()).add(vm.line)
            time.sleep(0.2)  # lanes change every second
    assert view.outcome is Outcome.RESOLVED, view.reason
    assert {"booting", "running"} <= seen.keys() <= {"booting", "running", "crashed", "controls"}
    assert any(re.match(r"\[ *[0-9.]+\]", line) for line in seen["booting"]), seen
    assert "kgym: guest ready" in seen["running"]


@pytest.mark.exhaustive
def test_a_calibrated_bug_tells_what_a_fix_has_to_survive() -> None:
    status, measured = kgym("bug", "calibrate", DEMO, "--runs", 4)
    assert (status, measured["runs"], measured["crashed"]) == (0, 4, 4), measured
    needed = {row["confidence"]: row for row in measured["recommended"]}
    assert needed[0.95]["instances"] <= needed[0.99]["instances"]
    status, outcome = kgym("bug", "reproduce", "--no-variants", DEMO)
    assert_resolved(status, outcome, [bug.load(DEMO).file.title])
    after = outcome["after"]
    assert (after["requested"], after["time"]) == (needed[0.95]["instances"], needed[0.95]["time"])
    assert after["confidence"] >= 0.95


@pytest.mark.exhaustive
def test_a_fix_that_cuts_off_is_told_with_its_verdict(tmp_path: Path) -> None:
    # Nothing crashes, as nothing is done any more.
    cut = tmp_path / "cut.patch"
    cut.write_text(
        "--- a/kernel/watch_queue.c\n+++ b/kernel/watch_queue.c\n@@ -339,2 +339,3 @@\n"
        "+        return 0;\n \tif (filter.nr_filters == 0 ||\n"
        " \t    filter.nr_filters > 16 ||\n"
    )
    asked = ("bug", "reproduce", "--no-variants", DEMO, "--fix", cut, "--validate")
    status, outcome = kgym(*asked)
    assert (status, outcome["after"]["verdict"], outcome["resolved"]) == (1, "no_crash", False)
    assert "early_return" in {obstacle["reason"] for obstacle in outcome["obstacles"]}
    reasons = {(finding["check"], finding["reason"]) for finding in outcome["after"]["findings"]}
    assert ("amputation", "early_return") in reasons
    assert "checkpatch" in {check for check, _ in reasons}
    assert "smoke" not in {check for check, _ in reasons}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in bug.names() if name != DEMO])
def test_a_shipped_bug_crashes_and_its_fix_holds(name: str) -> None:
    shipped = bug.load(name)
    status, outcome = kgym("bug", "reproduce", "--no-variants", name)
    assert_resolved(status, outcome, [shipped.file.title, *shipped.file.alt_titles])


@pytest.mark.skipif(not SYZBOT.is_dir(), reason="the reference data is not beside the checkout")
@pytest.mark.exhaustive
@pytest.mark.parametrize("folder", chosen(FOLDERS, 2), ids=lambda path: path.name[:8])
def test_a_syzbot_bug_crashes_and_its_fix_holds(folder: Path, tmp_path: Path) -> None:
    title = (folder / "title.txt").read_text().strip()
    for name in ("repro.c", "regress.patch"):
        shutil.copy(folder / name, tmp_path)
    shutil.copy(SYZBOT / "config.fragment", tmp_path)
    (tmp_path / "bug.toml").write_text(
        f"title = {json.dumps(title)}\n"
        '[kernel]\npackages = ["linux-source-6.1"]\nbase = "allnoconfig"\n'
        'fragments = ["config.fragment"]\n'
        '[reproducer]\nfile = "repro.c"\n'
        '[regress]\npatch = "regress.patch"\n'
    )
    # The fix of b61c2431 must refuse the program's own request: only variants tell that from a
    # patch that refuses everything.
    options = [] if folder.name.startswith("b61c2431") else ["--no-variants"]
    status, outcome = kgym("bug", "reproduce", *options, tmp_path)
    assert_resolved(status, outcome, [title])


@pytest.mark.exhaustive
def test_a_leak_is_found_though_the_program_has_no_memory_scanned(tmp_path: Path) -> None:
    bundle = shutil.copytree(configs.CONFIGS / "bugs" / "udp-cmsg-leak", tmp_path / "silent-leak")
    for name, original, replacement in (
        ("repro.c", "if (scan(kmemleak) || scan(kmemleak)) {", "if (kmemleak < 0) {"),
        ("repro.c", "static int scan(", "static __attribute__((unused)) int scan("),
        ("bug.toml", "time = 60", "time = 5"),
    ):
        text = (bundle / name).read_text()
        assert text.count(original) == 1
        (bundle / name).write_text(text.replace(original, replacement))
    status, outcome = kgym("bug", "reproduce", bundle, "--no-fix")
    assert outcome["before"]["verdict"] == "same_crash", outcome
    assert (status, outcome["before"]["title"]) == (0, bug.load("udp-cmsg-leak").file.title)


MODULE = Path(__file__).parent / "packet-module"


@pytest.mark.exhaustive
def test_a_bug_is_resolved_on_guests_that_start_from_a_disk() -> None:
    status, outcome = kgym(
        "bug", "reproduce", "--no-variants", "watch-queue-filter", "--root", "disk", "--validate"
    )
    before, after = outcome["before"], outcome["after"]
    assert (before["verdict"], after["verdict"]) == ("same_crash", "no_crash"), outcome
    assert (status, outcome["resolved"]) == (0, True)


@pytest.mark.exhaustive
def test_a_bug_in_a_module_shows_once_the_module_is_loaded() -> None:
    status, outcome = kgym("bug", "reproduce", "--no-variants", MODULE)
    before, after = outcome["before"], outcome["after"]
    assert before["title"] == "WARNING in packet_create", outcome
    assert (before["verdict"], after["verdict"]) == ("same_crash", "no_crash"), outcome
    assert (status, outcome["resolved"]) == (0, True)
