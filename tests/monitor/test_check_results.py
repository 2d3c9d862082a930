"""Compilers' messages beside the lines of patches."""

import re
import time

from kgym.api.steps import Diagnostic, Edit, Finding, Patch, Severity, StepResult
from kgym.bugs import bundle
from kgym_monitor.pages import check_results, diff_lines
from kgym_monitor.pages.check_results import SHOWN, WHOLE, Messages
from tests.demo.checked_patches import DIFF, FILE, OUTPUT, SAID, diagnostic, patches, request
from tests.demo.showcase import HOSTILE
from tests.monitor.browsing import Visitor, words
from tests.monitor.conftest import Site
from tests.results import built, job_view, ran

# --- where a message stands ---------------------------------------------------------------


def beside(patch: Patch, messages: Messages) -> dict[str, list[str]]:
    """Return the messages by the text of the line that they stand below."""
    shown = diff_lines.files(patch)
    return {
        line.text.strip(): [message.about.message for message in messages.at(number, place)]
        for number, file in enumerate(shown.files)
        for place, line in enumerate(file.lines)
        if messages.at(number, place)
    }


def placed(patch: Patch, *diagnostics: Diagnostic, output: str = "") -> Messages:
    return check_results.messages(diff_lines.files(patch), diagnostics, output, (None, "6.1.192"))


def test_a_message_stands_below_its_line() -> None:
    patch = Patch(diff=DIFF)
    messages = placed(patch, *SAID, output=OUTPUT)
    assert beside(patch, messages) == {
        "if (filter.nr_filters > WATCH_TYPES)": ["comparison is always false"],
        "return -EINVAL": ["expected ';' before 'tf'"],
    }
    assert [message.about.line for message in messages.within[FILE]] == [512]
    [other] = messages.elsewhere
    assert other.link is not None
    assert other.link.endswith("v6.1.192/source/include/linux/watch_queue.h#L80")


def test_a_patch_that_applies_further_down_has_its_messages_by_the_quoted_words() -> None:
    patch = Patch(diff=DIFF)
    moved = OUTPUT.replace("362", "372")
    messages = placed(patch, diagnostic(FILE, 372, "error", "late"), output=moved)
    assert beside(patch, messages) == {"return -EINVAL": ["late"]}


def test_a_line_that_reads_otherwise_than_quoted_is_not_the_one() -> None:
    patch = Patch(diff=DIFF)
    quoted = f"{FILE}:362:1: error: x\n  362 | something else entirely\n"
    messages = placed(patch, diagnostic(FILE, 362, "error", "x"), output=quoted)
    assert beside(patch, messages) == {}
    assert len(messages.within[FILE]) == 1


def test_a_patch_on_trial_has_the_findings_of_its_own_kernel_only() -> None:
    bug = bundle.load("watch-queue-filter")

    def of(message: str) -> list[Finding]:
        return [Finding(check="scope", reason="x", message=message, file="kernel/x.c")]

    results: list[StepResult] = [
        *(built(findings=of("unpatched")), ran(findings=of("unpatched"))),
        *(built(findings=of("patched")), ran(findings=of("its run"))),
    ]
    steps = [
        {"name": spec.name, "kind": spec.kind, "result": result, "spec": spec}
        for spec, result in zip(bug.job(bug.fix).steps, results, strict=True)
    ]
    [patch] = check_results.on_trial(job_view(steps))
    messages = [message.about.message for message in patch.messages.elsewhere]
    assert messages == ["patched", "its run"]


def test_messages_on_a_patch_on_trial_are_bounded_and_what_blocks_comes_first() -> None:
    bug = bundle.load("watch-queue-filter")
    spec = bug.job(bug.fix).steps[2]
    note = Finding(check="scope", reason="x", message="m", file="kernel/x.c")
    blocks = note.model_copy(update={"severity": Severity.BLOCKING})
    warnings = [diagnostic("kernel/y.c", line, "warning", "w") for line in range(1, 10_000)]
    result = built(findings=[*[note] * SHOWN, blocks], warnings=warnings)
    began = time.process_time()
    job = job_view([{"name": spec.name, "kind": spec.kind, "result": result, "spec": spec}])
    [patch] = check_results.on_trial(job)
    assert time.process_time() - began < 2
    labels = [message.label for message in patch.messages.elsewhere]
    assert labels == ["new warning"] * SHOWN + ["blocking finding"] + ["note"] * (SHOWN - 1)
    assert patch.messages.left_out == len(warnings) - SHOWN + 1


def test_a_patch_is_read_once_for_all_polls() -> None:
    assert diff_lines.files(Patch(diff=DIFF)) is diff_lines.files(Patch(diff=DIFF))
    refused = Patch(diff="GIT binary patch")
    assert diff_lines.files(refused).files


def test_edits_have_no_numbers_but_words() -> None:
    patch = Patch(
        edits=[
            Edit(file=FILE, original="\tint a;\n", replacement="\tint a;\n\tint unused;\n"),
            Edit(file="mm/slab.c", original="x", replacement="y"),
            Edit(file=FILE, original="b = 1;", replacement="b = 2;"),
        ]
    )
    output = f"{FILE}:9:1: warning: w\n    9 |         int unused;\n{FILE}:99:1: error: e\n"
    output += "   99 | b = 2;\n"
    diagnostics = (diagnostic(FILE, 9, "warning", "w"), diagnostic(FILE, 99, "error", "e"))
    assert beside(patch, placed(patch, *diagnostics, output=output)) == {
        "int unused;": ["w"],
        "b = 2;": ["e"],
    }
    assert beside(patch, placed(patch, *diagnostics)) == {}  # nothing quoted, nothing guessed


def test_words_that_stand_twice_name_no_line() -> None:
    patch = Patch(edits=[Edit(file=FILE, original="x", replacement="a;\na;")])
    output = f"{FILE}:5:1: error: e\n    5 | a;\n"
    messages = placed(patch, diagnostic(FILE, 5, "error", "e"), output=output)
    assert beside(patch, messages) == {}
    assert len(messages.within[FILE]) == 1


def test_a_removed_line_has_no_message() -> None:
    patch = Patch(diff=f"--- a/{FILE}\n+++ b/{FILE}\n@@ -5,2 +5,1 @@\n-old();\n same();\n")
    messages = placed(patch, diagnostic(FILE, 5, "error", "e"))
    assert beside(patch, messages) == {"same();": ["e"]}


# --- pages --------------------------------------------------------------------------------


def test_each_patch_of_a_check_has_its_own_result(site: Site, visitor: Visitor) -> None:
    job = site.client.submit(request())
    site.client.wait(job.id)
    page = visitor.get(f"/jobs/{job.id}")
    summaries = dict(re.findall(r'(?s)id="patch-0-(\d)">\s*<summary>(.*?)</summary>', page.text))
    assert "does not compile" in summaries["0"]
    assert "2 errors" in summaries["0"]
    assert "2 new warnings" in summaries["0"]
    assert "compiles" in summaries["1"]
    assert "1 new warning" in summaries["1"]
    assert "does not apply" in summaries["2"]
    patch_page = visitor.get(f"/jobs/{job.id}/steps/0/patches/0")
    lines = re.findall(
        r'<tr class="([^"]+)">.*?<td(?: class="text")?>([^\n]*)</td></tr>', patch_page.text
    )
    kinds = [kind for kind, _ in lines]
    assert kinds[:6] == ["hunk", "same", "added", "beside warning", "added", "beside error"]
    assert "In other files" in words(patch_page)
    assert "watch_queue.h#L80" in patch_page.text
    assert f"{FILE}, on lines that are not shown" in words(patch_page)
    assert "Instructions before" in words(visitor.get(f"/jobs/{job.id}/steps/0/patches/1"))
    for path in ("3", "10001", "x", "-1"):
        answer = visitor.get(f"/jobs/{job.id}/steps/0/patches/{path}")
        assert answer.status_code in {404, 422}
    assert visitor.get(f"/jobs/{job.id}/steps/9/patches").status_code == 404


def test_many_patches_are_listed_by_outcome_in_pages(site: Site, visitor: Visitor) -> None:
    early, edits, elsewhere = patches()
    asked = [edits] * 120 + [early, elsewhere]
    assert len(asked) > WHOLE
    job = site.client.submit(request(*asked))
    site.client.wait(job.id)
    page = visitor.get(f"/jobs/{job.id}")
    assert 'id="patch-0-' not in page.text
    assert "All 122 patches" in words(page)
    listed = visitor.get(f"/jobs/{job.id}/steps/0/patches?outcome=compiles")
    assert listed.text.count("/patches/") == 100
    after = re.search('rel="next" href="([^"]+)"', listed.text)
    assert after is not None
    more = visitor.get(after[1].replace("&amp;", "&"))
    assert more.text.count("/patches/") == 20
    assert 'rel="next"' not in more.text
    failed = visitor.get(f"/jobs/{job.id}/steps/0/patches?outcome=does_not_compile")
    assert "/patches/120" in failed.text
    assert "/patches/121" not in failed.text
    assert visitor.get(f"/jobs/{job.id}/steps/0/patches?outcome=odd").status_code == 422


def test_what_is_hostile_in_a_check_is_shown_as_text(site: Site, visitor: Visitor) -> None:
    job = site.client.submit(request(*patches(HOSTILE[:150])))
    site.client.wait(job.id)
    steps = f"/jobs/{job.id}/steps/0/patches"
    for path in (f"/jobs/{job.id}", steps, f"{steps}/0"):
        page = visitor.get(path)
        assert "onerror=" in words(page)
        assert "<img" not in page.text
        assert "\x1b" not in page.text


def test_of_too_many_messages_the_errors_are_shown() -> None:
    patch = Patch(diff=DIFF)
    diagnostics = [diagnostic(FILE, 361, "warning", f"w{number}") for number in range(SHOWN + 50)]
    diagnostics.append(diagnostic(FILE, 362, "error", "e"))
    messages = placed(patch, *diagnostics)
    assert messages.left_out == 51
    assert beside(patch, messages)["return -EINVAL"] == ["e"]
