"""What is said about a patch beyond whether it compiles."""

from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec, Edit, Patch
from kgym.bugs import bundle
from kgym.source import patching
from kgym_builder.evidence.patch_review import on_trial, review
from kgym_builder.evidence.removed_code import amputations
from kgym_builder.kbuild.working_tree import Tree
from tests.builder.conftest import FakeLinux
from tests.conftest import DATA

pytestmark = pytest.mark.anyio

SOURCES = sorted((DATA / "cache" / "sources" / "trees").glob("*/tree"))
PATH = "kernel/watch_queue.c"
CHECK = "\tif (type >= WATCH_TYPE__NR)\n\t\treturn -1;\n"


def cut(name: str) -> Patch:
    return Patch(name=name, edits=[Edit(file=PATH, original=CHECK, replacement="")])


async def test_a_build_reviews(linux: FakeLinux) -> None:
    """It reviews the patches that it is asked to review, and no others."""
    other = Patch(name="other", edits=[Edit(file=PATH, original="[8]", replacement="[16]")])
    unasked = linux.spec.model_copy(update={"patches": [other, cut("cut")]})
    assert (await linux.build(unasked)).findings == []
    run = linux.new_run(unasked.model_copy(update={"review": ["cut"]}))
    (finding,) = (await linux.builder(run)).findings
    assert (finding.check, finding.reason, finding.file) == ("amputation", "check_removed", PATH)
    assert "check_removed" in (run.folder / "step.log").read_text()


def test_a_review_of_no_patch_is_refused(fake_build: BuildSpec) -> None:
    with pytest.raises(ValueError, match="names no patch: other"):
        BuildSpec.model_validate({**fake_build.model_dump(), "review": ["other"]})


needs_source = pytest.mark.skipif(not SOURCES, reason="no kernel source is in the data folder")


@needs_source
@pytest.mark.parametrize("form", ["diff", "edits"])
async def test_the_kernels_checkpatch_looks_at_the_style(tmp_path: Path, form: str) -> None:
    before = (SOURCES[0] / PATH).read_text()
    original = "\t    filter.nr_filters > 16 ||\n"
    replacement = "\t    filter.nr_filters>16||   \n"
    number = before[: before.index(original)].count("\n") + 1
    edits = Patch(name="it", edits=[Edit(file=PATH, original=original, replacement=replacement)])
    diff = Patch(
        name="it",
        diff=f"--- a/{PATH}\n+++ b/{PATH}\n@@ -{number} +{number} @@\n-{original}+{replacement}",
    )
    patch = diff if form == "diff" else edits
    tree = Tree((SOURCES[0],), tmp_path / "tree")
    trial = await on_trial(tree, [patch], ["it"])
    findings = await review(tree, trial, [], checkpatch=True)
    assert await review(tree, trial, [PATH], checkpatch=False) == []
    assert {"TRAILING_WHITESPACE", "SPACING"} <= {finding.reason for finding in findings}
    assert {finding.check for finding in findings} == {"checkpatch"}
    assert {(finding.file, finding.line) for finding in findings} == {(PATH, number)}


@needs_source
@pytest.mark.parametrize("name", bundle.names())
def test_no_known_fix_cuts_anything_off(name: str) -> None:
    (regress,) = bundle.load(name).build.patches
    fixed = {path: (SOURCES[0] / path).read_bytes() for path in patching.files(regress)}
    changes = patching.apply(regress, fixed.get).changes
    broken = {change.path: change.content for change in changes if change.content}
    assert amputations(broken, fixed) == []
