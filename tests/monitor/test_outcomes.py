"""Outcomes on pages: what a job came to, and why, without a click."""

import re

import pytest

from kgym.api.outcomes import Outcome
from kgym.api.steps import Evidence, Failure, Patch, Verdict
from kgym_monitor.pages import check_results
from kgym_monitor.pages.job_page import focus
from tests.conftest import ROOT
from tests.demo import checked_patches
from tests.demo.checked_patches import DIFF, FILE, diagnostic
from tests.demo.showcase import BUG, FINDINGS, trial
from tests.monitor.browsing import Visitor, words
from tests.monitor.conftest import Site
from tests.results import built, job_view, ran

pytestmark = pytest.mark.thorough
HIDES = "the patch hides code from KASAN, kernel/watch_queue.c:320"
CSS = ROOT / "services" / "kgym_monitor" / "static" / "monitor.css"
EVIDENCE = "7 of 7 controls reported"


_ENDED: dict[tuple[str, ...], int] = {}


def ended(site: Site, *marks: str) -> int:
    """Return the job of a trial with these marks, which has ended."""
    if marks not in _ENDED:
        _ENDED[marks] = site.client.wait(site.client.submit(trial(*marks)).id).id
    return _ENDED[marks]


def row_of(visitor: Visitor, job: int, path: str = "/jobs") -> str:
    """Return the markup of a job's row."""
    rows = re.findall(rf'(?s)<tr id="job-{job}".*?</tr>', visitor.get(path).text)
    assert len(rows) == 1
    return str(rows[0])


def head(visitor: Visitor, job: int) -> str:
    """Return the markup of a job's page above its steps."""
    page = visitor.get(f"/jobs/{job}").text
    inside = page.partition('id="job-live"')[2].partition(">")[2]
    return inside.partition('class="timeline"')[0]


def test_a_blocking_finding_is_named_on_lists_and_at_the_head_of_its_job(
    site: Site, visitor: Visitor
) -> None:
    job = ended(site, "HIDES")
    row = row_of(visitor, job)
    assert HIDES in row
    assert "not resolved" in row
    assert HIDES in row_of(visitor, job, f"/bugs/{BUG.name}")
    shown = head(visitor, job)
    assert f"Not resolved: {HIDES}" in shown
    assert "succeeded" not in re.findall(r'<div class="chips">(.*?)</div>', shown)[0]
    assert EVIDENCE in shown
    assert "blocking finding</strong>" in shown  # beside the line of the patch


def test_a_job_opens_at_the_step_whose_finding_decided(site: Site, visitor: Visitor) -> None:
    text = visitor.get(f"/jobs/{ended(site, 'HIDES')}").text
    assert "Step 2: Build" in text
    assert "Step 3: Reproduce" in visitor.get(f"/jobs/{ended(site)}").text


def test_a_finding_on_the_kernel_without_the_patch_decides_nothing() -> None:
    weak = built(findings=[FINDINGS["HIDES"]])
    crash = ran(Verdict.SAME_CRASH, evidence=Evidence())
    steps = zip(BUG.job(BUG.fix).steps, (weak, crash, built(), crash), strict=True)
    job = job_view([{"name": s.name, "kind": s.kind, "spec": s, "result": r} for s, r in steps])
    assert (job.outcome, focus(job)) == (Outcome.NOT_RESOLVED, 3)


def test_a_resolved_bug_shows_its_evidence_and_a_note_on_the_patch(
    site: Site, visitor: Visitor
) -> None:
    assert f"{EVIDENCE}; " in row_of(visitor, ended(site))
    job = ended(site, "GUTS")
    note = "note: watch_queue_set_filter(): little of it is left, kernel/watch_queue.c:301"
    assert f"{note}; {EVIDENCE}" in row_of(visitor, job)
    assert f"Resolved: {note}" in head(visitor, job)
    assert EVIDENCE in head(visitor, job)


def test_no_row_of_a_phone_lacks_the_outcome(site: Site, visitor: Visitor) -> None:
    cell = re.search(r'<td class="([^"]*)"><span class="chip', row_of(visitor, ended(site, "SAME")))
    assert cell is not None
    hidden = re.findall(r"@media \(max-width[^{]*\{\s*(\.\w+)", CSS.read_text())
    assert {".wide", ".mid"} & set(hidden)
    assert not {f".{name}" for name in cell[1].split()} & set(hidden)


def test_a_trial_names_its_patch_and_a_check_counts_those_that_compile(
    site: Site, visitor: Visitor
) -> None:
    assert f"{BUG.name}: fix</a>" in row_of(visitor, ended(site))
    check = site.client.submit(checked_patches.request()).id
    site.client.wait(check)
    row = row_of(visitor, check)
    assert "does not apply" in row
    assert "1 of 3 patches compile; elsewhere: " in row
    assert "succeeded" not in row.partition('class="pipeline"')[0]


def test_lists_are_filtered_by_outcome_and_link_to_it(site: Site, visitor: Visitor) -> None:
    resolved, crashed = ended(site), ended(site, "SAME")
    listed = visitor.get("/jobs?outcome=not_resolved")
    assert f'id="job-{crashed}"' in listed.text
    assert f'id="job-{resolved}"' not in listed.text
    assert '<option value="not_resolved" selected>not resolved</option>' in listed.text
    assert 'role="alert"' in visitor.get("/jobs?outcome=odd").text
    assert f"/jobs?bug={BUG.name}&amp;outcome=resolved" in visitor.get(f"/bugs/{BUG.name}").text


def test_an_unfinished_job_says_at_which_step_it_is(site: Site, visitor: Visitor) -> None:
    site.showcase.let_go.clear()
    try:
        job = site.client.submit(trial("HELD"))
        source = site.client.submit(BUG.source())
        assert re.search("(running|waiting).*step [02] \\(build\\)", row_of(visitor, job.id))
        assert "Waiting: step 0 (source)" in words(visitor.get(f"/jobs/{source.id}"))
        assert ' open id="on-trial-' in visitor.get(f"/jobs/{job.id}").text
    finally:
        site.showcase.let_go.set()
        site.client.abort(source.id)
        site.client.wait(job.id)
    assert "Aborted" not in head(visitor, source.id)
    assert "aborted" in head(visitor, source.id)


# --- the patch on trial -----------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_errors_are_those_of_the_patch_on_trial_which_comes_first(fails: bool) -> None:
    patches = [Patch(name=name, diff=DIFF) for name in ("introduces", "tried")]
    changed = {"patches": patches, "review": ["tried"]}
    spec = BUG.job(BUG.fix).steps[2].model_copy(update=changed)
    error = diagnostic(FILE, 362, "error", "expected ';'")
    failure = Failure(
        cause="user",
        reason="does_not_compile",
        message="x",
        details={"diagnostics": [error.model_dump()]},
    )
    step: dict[str, object] = {"name": spec.name, "kind": spec.kind, "spec": spec}
    if fails:
        step |= {"state": "failed", "failure": failure}
    first, second = check_results.patches(job_view([step]).steps[0])
    assert (first.name, second.name) == ("tried", "introduces")
    assert (first.errors, second.errors) == (int(fails), 0)
