"""Bug bundles: what they say becomes a job; what is wrong with them is named."""

import json
import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from kgym.api.jobs import JobRequest
from kgym.api.steps import (
    BuildSpec,
    Calibration,
    GitSource,
    Measure,
    PackageSource,
    Patch,
    ReproduceSpec,
    SyzkallerSpec,
)
from kgym.bugs import bundle as bug
from kgym.bugs.bug import BEFORE, BUILD_AFTER, Bug, TrialOptions
from kgym.bugs.shipped import shipped
from kgym.errors import UserError
from tests.refused import refused
from tests.tables import json_rows, rows

BUG = Path(__file__).with_name("bundle.toml").read_text()
PATCH = "--- a/kernel/f.c\n+++ b/kernel/f.c\n@@ -1 +1 @@\n-good();\n+bad();\n"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "my-bug"
    folder.mkdir()
    (folder / "bug.toml").write_text(BUG)
    (folder / "repro.c").write_text("int main(void) { return 0; }\n")
    (folder / "config.fragment").write_text("CONFIG_NET=y\n")
    (folder / "regress.patch").write_text(PATCH)
    return folder


def test_the_commit_that_brought_the_bug_is_read_with_its_diff(bundle: Path) -> None:
    assert bug.load(str(bundle)).cause is None
    (bundle / "cause.patch").write_text(PATCH)
    table = '[cause]\ntitle = "f: be bad"\npatch = "cause.patch"\n'
    function = 'functions = [{ file = "kernel/f.c", name = "f" }]\n'
    (bundle / "bug.toml").write_text(BUG + table + function)
    cause = bug.load(str(bundle)).cause
    assert cause is not None
    assert (cause.commit, cause.title, cause.diff) == ("", "f: be bad", PATCH)
    assert [(function.file, function.name) for function in cause.functions] == [("kernel/f.c", "f")]


@pytest.mark.parametrize(("table", "words"), rows(__file__, "bad_causes.tsv"))
def test_a_cause_that_is_none_says_what_is_wrong(bundle: Path, table: str, words: str) -> None:
    (bundle / "bug.toml").write_text(f"{BUG}[cause]\n{table}\n")
    with refused("bad_bundle", match=words):
        bug.load(str(bundle))


def test_a_folder_becomes_a_job_of_four_steps(bundle: Path) -> None:
    loaded = bug.load(str(bundle))
    before, crash, after, survive = loaded.job(loaded.fix).steps
    assert isinstance(before, BuildSpec)
    assert [patch.diff for patch in before.patches] == [PATCH]
    assert isinstance(crash, ReproduceSpec)
    assert (crash.titles, crash.time) == (["KASAN: use-after-free Read in f"], 7)
    assert isinstance(after, BuildSpec)
    assert len(after.patches) == 2
    assert isinstance(survive, ReproduceSpec)
    assert survive.build.step == after.name == BUILD_AFTER
    assert survive.baseline
    assert survive.baseline.step == crash.name == BEFORE


def test_backports_go_with_each_of_its_steps(bundle: Path) -> None:
    (bundle / "backport.patch").write_text(PATCH.replace("good", "old").replace("bad", "new"))
    more = """
[[kernel.backports]]
name = "loop"
patch = "backport.patch"
when = { kernel_before = "5.4", compiler = "gcc", compiler_from = "12" }
"""
    (bundle / "bug.toml").write_text(BUG.replace("[reproducer]", more + "[reproducer]"))
    loaded = bug.load(str(bundle))
    (backport,) = loaded.build.backports
    assert (backport.name, backport.when.compiler_from) == ("loop", "12")
    assert backport.diff
    for job in (loaded.job(loaded.fix), loaded.source(), loaded.check([Patch(diff=PATCH)])):
        for step in job.steps:
            if not isinstance(step, ReproduceSpec):
                assert step.backports == [backport]  # type: ignore[union-attr]
    for wrong in ("../loop", ""):
        text = BUG.replace("[reproducer]", more.replace("loop", wrong) + "[reproducer]")
        (bundle / "bug.toml").write_text(text)
        with pytest.raises(UserError, match=r"kernel\.backports"):
            bug.load(str(bundle))


def test_programs_of_syzkallers_stand_beside_others(bundle: Path) -> None:
    (bundle / "repro.syz").write_text('#{"procs":4,"sandbox":"none"}\ngetpid()\n')
    more = '[[reproducer.others]]\nfile = "repro.syz"\nkind = "syz"\n'
    (bundle / "bug.toml").write_text(BUG.replace("[regress]", more + "[regress]"))
    _, crash = bug.load(str(bundle)).job(None).steps
    assert isinstance(crash, ReproduceSpec)
    assert [program.kind for program in [crash.reproducer, *crash.others]] == ["c", "syz"]


def test_a_bad_header_of_a_program_is_named(bundle: Path) -> None:
    (bundle / "repro.c").write_text('#{"procs":4,"sandbox":"sand"}\ngetpid()\n')
    (bundle / "bug.toml").write_text(BUG.replace("time = 7", 'time = 7\nkind = "syz"'))
    with refused("bad_bundle", match=r"repro\.c: .*sandbox is 'sand'"):
        bug.load(str(bundle))


def test_a_trial_says_how_the_fix_is_tried_and_leaves_the_rest(bundle: Path) -> None:
    loaded = bug.load(str(bundle))
    known = Calibration(runs=5, crashed=5, time=2, accelerator="tcg")
    wanted = TrialOptions(instances=9, time=3, known=known, validate=True)
    plain, steps = loaded.job(loaded.fix).steps, loaded.job(loaded.fix, wanted).steps
    assert [step.model_copy(update={"measure": None}) for step in plain[1:2]] == steps[1:2]
    assert steps[0] == plain[0]
    build, survive = steps[2:]
    assert isinstance(build, BuildSpec)
    assert isinstance(survive, ReproduceSpec)
    assert build.review == [loaded.fix and loaded.fix.name]
    assert (survive.instances, survive.time, survive.smoke) == (9, 3, True)
    assert survive.calibration == known
    assert survive.confidence is None


def sides(request: JobRequest) -> tuple[ReproduceSpec, ReproduceSpec]:
    """Return the reproduce steps of a trial, as a scheduler takes them in."""
    request = JobRequest.model_validate(request.model_dump())
    before, after = (step for step in request.steps if isinstance(step, ReproduceSpec))
    return before, after


def test_a_bug_that_is_not_known_is_measured_on_the_way(bundle: Path) -> None:
    loaded = bug.load(str(bundle))
    request = loaded.job(loaded.fix)
    before, after = sides(request)
    assert before.measure == Measure()
    assert (after.measure, after.confidence, after.calibration) == (None, 0.95, None)
    assert loaded.calibration_tag in request.tags
    assert loaded.calibration_tag in loaded.shown().tags
    assert loaded.calibration_tag not in loaded.job(None).tags
    assert loaded.fix is not None
    apart = loaded.trial(loaded.fix, 7).steps[-1]
    assert isinstance(apart, ReproduceSpec)
    assert (apart.measure, apart.confidence) == (None, 0.95)


def test_a_bug_that_is_known_tells_what_a_fix_has_to_survive(bundle: Path) -> None:
    loaded = bug.load(str(bundle))
    known = Calibration(runs=5, crashed=5, time=8, accelerator="tcg")
    request = loaded.job(loaded.fix, TrialOptions(known=known, confidence=0.99))
    before, after = sides(request)
    assert (before.measure, after.confidence, after.calibration) == (None, None, known)
    assert (after.instances, after.time) == (4, 12)
    assert loaded.calibration_tag not in request.tags


@pytest.mark.parametrize("runs", [1, 9, 10])
def test_what_is_known_of_too_few_runs_is_measured_anew(bundle: Path, runs: int) -> None:
    """Of ten, one of which crashed, a fix would have to survive 190, for an hour and more."""
    loaded = bug.load(str(bundle))
    known = Calibration(runs=runs, crashed=1, time=20, accelerator="tcg")
    before, after = sides(loaded.job(loaded.fix, TrialOptions(known=known)))
    assert (before.measure is not None, after.confidence is not None) == (runs < 10,) * 2
    assert (after.instances, after.time, after.calibration) == (2, 7, known)


def test_a_mark_of_a_calibration_is_true_only_of_a_job_that_measures(bundle: Path) -> None:
    loaded = bug.load(str(bundle))
    request = loaded.job(loaded.fix)
    steps = [
        step.model_copy(update={"measure": None}) if isinstance(step, ReproduceSpec) else step
        for step in request.steps
    ]
    with pytest.raises(ValidationError, match="calibration="):
        JobRequest(steps=steps, tags=request.tags)


def test_a_calibration_runs_to_the_end_without_the_fix(bundle: Path) -> None:
    loaded = bug.load(str(bundle))
    job = loaded.calibration(runs=12)
    _, measure = job.steps
    assert isinstance(measure, ReproduceSpec)
    assert (measure.instances, measure.time, measure.stop_at_first_crash) == (12, 7, False)
    assert loaded.calibration_tag in job.tags


def test_a_calibration_holds_for_the_bug_as_it_is(bundle: Path) -> None:
    tag = bug.load(str(bundle)).calibration_tag
    assert bug.load(str(bundle)).calibration_tag == tag
    (bundle / "repro.c").write_text("int main(void) { return 1; }\n")
    assert bug.load(str(bundle)).calibration_tag != tag


def test_without_a_fix_the_reverse_of_the_regression_is_the_fix(bundle: Path) -> None:
    fix = bug.load(str(bundle)).fix
    assert fix is not None
    assert "-bad();\n+good();\n" in (fix.diff or "")


def test_a_relative_tarball_lies_in_the_bundle(bundle: Path) -> None:
    source = bug.load(str(bundle)).build.source
    assert source.kind == "tarball"
    assert source.url == str(bundle / "linux.tar")


@pytest.mark.parametrize(("named", "meant"), rows(__file__, "repositories.tsv"))
def test_a_repository_is_named_by_url_or_path(
    bundle: Path, named: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(bundle.parent))
    text = BUG.replace('tarball = "linux.tar"', f'git = "{named}"\ncommit = "HEAD"')
    (bundle / "bug.toml").write_text(re.sub("(?m)^sha256.*$", "", text))
    source = bug.load(str(bundle)).build.source
    assert source.kind == "git"
    assert (source.url, source.commit) == (meant.format(parent=bundle.parent), "HEAD")


@pytest.mark.parametrize("text", ["kernel = 3", "a = " + "[" * 5000, 'kernel = ["use"]'])
def test_a_file_that_is_no_bundle_at_all_is_named(bundle: Path, text: str) -> None:
    (bundle / "bug.toml").write_text(f"{text}\n")
    with refused("bad_bundle", match=r"bug\.toml"):
        bug.load(str(bundle))


def test_a_patch_of_a_bundle_may_be_in_latin_1(bundle: Path) -> None:
    (bundle / "regress.patch").write_bytes(b"From: J\xfcrgen\n\n" + PATCH.encode())
    (regress,) = bug.load(str(bundle)).build.patches
    assert (regress.diff or "").startswith("From: J\xfcrgen")


def test_every_shipped_bug_loads_and_shares_one_kernel_and_config() -> None:
    known = [bug.load(name) for name in bug.names()]
    assert len(known) >= 3
    assert "watch-queue-filter" in bug.names()
    trees = {
        shipped.build.model_copy(update={"patches": []}).model_dump_json() for shipped in known
    }
    assert len(trees) == 1
    assert all(shipped.fix is not None and shipped.file.files for shipped in known)
    assert len({shipped.file.kind for shipped in known}) >= 3


def test_the_list_of_shipped_bugs_says_what_their_bundles_say() -> None:
    for listed in shipped():
        loaded = bug.load(listed.name)
        file = loaded.file
        assert (listed.title, listed.kind, listed.alt_titles) == (
            file.title,
            file.kind,
            file.alt_titles,
        )
        assert (listed.summary, listed.references) == (file.summary.strip(), file.references)
        assert (listed.files, listed.has_fix) == (file.files, loaded.fix is not None)


def test_a_shipped_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bugs" / "one").mkdir(parents=True)
    (tmp_path / "bugs" / "one" / "bug.toml").write_text("class = 'x'\n")
    with pytest.raises(UserError, match=r"one/bug\.toml: KeyError"):
        shipped(tmp_path)


# --- other kernels ---------------------------------------------------------------------------


ON = Path(__file__).with_name("on_linux_5.10.toml").read_text()


def test_a_bug_is_tried_on_a_shared_kernel_by_name_at_kernel(bundle: Path) -> None:
    own, other = bug.load(str(bundle)), bug.load(f"{bundle}@linux-5.10")
    assert (own.name, other.name) == ("my-bug", "my-bug@linux-5.10")
    source = other.build.source
    assert isinstance(source, PackageSource)
    assert (source.names, source.suite) == (["linux-source-5.10"], "bullseye")
    assert (own.build.patches, own.fix) == (other.build.patches, other.fix)
    assert other.job(other.fix).tags[0] == "bug=my-bug@linux-5.10"
    assert own.calibration_tag != other.calibration_tag


def test_what_is_otherwise_on_a_kernel_holds_there_alone(bundle: Path) -> None:
    (bundle / "bug.toml").write_text(BUG + '[fix]\npatch = "regress.patch"\n' + ON)
    here, there = bug.load(f"{bundle}@linux-6.12"), bug.load(f"{bundle}@linux-5.10")
    assert (here.titles, here.file.files) == (["KASAN: use-after-free Read in f"], ["kernel/f.c"])
    assert (there.titles, there.file.files) == (["KASAN: use-after-free Read in g"], ["kernel/g.c"])
    assert here.fix is not None
    assert here.fix.diff == PATCH
    # The bundle's own fix does not undo what brings the bug back there.
    assert there.fix is not None
    assert [edit.replacement for edit in there.fix.edits] == ["better();"]


def test_a_folder_whose_name_has_an_at_sign_is_meant_itself(bundle: Path) -> None:
    same = bundle.rename(bundle.with_name("my-bug@linux-5.10"))
    assert bug.load(str(same)).build.source.kind == "tarball"
    assert bug.load(f"{same}@linux-5.10").build.source.kind == "package"


@pytest.mark.parametrize("kernel", ["linux-0.1", "capture", "..", ""])
def test_a_kernel_that_there_is_not_is_answered_with_those_there_are(kernel: str) -> None:
    with refused("no_such_kernel", match=r"there are: .*linux-5\.10, linux-6\.1"):
        bug.load(f"watch-queue-filter@{kernel}")


@pytest.mark.attack
@pytest.mark.parametrize("suite", json_rows(__file__, "overfull_suites.jsonl"))
def test_a_suite_cannot_be_more_than_a_suite(bundle: Path, suite: str) -> None:
    packages = f'packages = ["linux-source-5.10"]\nsuite = {json.dumps(suite)}'
    table = re.sub(r'tarball = .*\nsha256 = ".*"', lambda _: packages, BUG)
    (bundle / "bug.toml").write_text(table)
    with refused("bad_bundle", match="suite"):
        bug.load(str(bundle))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with refused("no_such_bug", match="watch-queue-filter"):
        bug.load("no-such-bug")


@pytest.mark.parametrize(("old", "new", "complaint"), rows(__file__, "bad_bundles.tsv"))
def test_what_is_wrong_with_a_bundle_is_named(
    bundle: Path, old: str, new: str, complaint: str
) -> None:
    (bundle / "bug.toml").write_text(BUG.replace(old, new))
    with refused("bad_bundle", match=complaint):
        bug.load(str(bundle))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("time = 7", "time = 1e9"),
        ("time = 7", "time = 7\ninstances = 1001"),
        ("time = 7", "time = inf"),
        ("use-after-free Read in f", "x" * 2000),
    ],
)
def test_a_bundle_that_no_job_can_hold_is_bad(bundle: Path, old: str, new: str) -> None:
    assert old in BUG
    (bundle / "bug.toml").write_text(BUG.replace(old, new))
    with refused("bad_bundle"):
        bug.load(str(bundle))


def test_a_file_of_a_bundle_that_is_too_large_is_named_by_what_it_is_for(bundle: Path) -> None:
    (bundle / "config.fragment").write_text("# long\n" * (1 << 20))
    with refused("bad_bundle", match=r"fragments\.0: .* at most"):
        bug.load(str(bundle))


@pytest.mark.parametrize("way", ["absolute", "dots", "link", "linked folder", "pipe", "device"])
@pytest.mark.parametrize("field", ["repro.c", "fragment", "patch", "bug.toml"])
def test_no_path_leads_out_of_the_bundle(bundle: Path, way: str, field: str) -> None:
    secret = bundle.parent / "secret"
    secret.write_text("the secret\n")
    match way:
        case "absolute":
            name = str(secret)
        case "dots":
            name = "x/../../secret"
            (bundle / "x").mkdir()
        case "link":
            name = "link"
            (bundle / name).symlink_to(secret)
        case "linked folder":
            name = "folder/secret"
            (bundle / "folder").symlink_to(bundle.parent)
        case "pipe":
            name = "pipe"
            os.mkfifo(bundle / name)
        case _:
            name = "/dev/zero"
    if field == "bug.toml":
        (bundle / field).unlink()
        (bundle / field).symlink_to(secret)
    new = {
        "bug.toml": None,
        "repro.c": BUG.replace('file = "repro.c"', f'file = "{name}"'),
        "fragment": BUG.replace('["config.fragment"]', f'["{name}"]'),
        "patch": BUG + f'\n[fix]\npatch = "{name}"\n',
    }[field]
    assert new != BUG
    if new is not None:
        (bundle / "bug.toml").write_text(new)
    with refused("bad_bundle", match=r"leads out of|not a regular file") as caught:
        bug.load(str(bundle))
    assert "the secret" not in caught.value.message


def test_a_file_of_a_bundle_may_not_be_huge(bundle: Path) -> None:
    with (bundle / "repro.c").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="more than 16 MiB"):
        bug.load(str(bundle))


ON_REQUEST = """
[[reproducer.on_request]]
file = "repro.syz"
kind = "syz"
syzkaller = "3ab38479ab60b50d5b27332bd001c78382877ecd"
[regress]"""


@pytest.fixture
def both(bundle: Path) -> Bug:
    (bundle / "repro.syz").write_text('#{"procs":4,"sandbox":"none"}\ngetpid()\n')
    (bundle / "bug.toml").write_text(BUG.replace("[regress]", ON_REQUEST))
    return bug.load(str(bundle))


def test_programs_on_request_run_where_they_are_asked_for(both: Bug) -> None:
    kinds = {
        kind: [program.kind for program in both.run_by(kind).reproducers]
        for kind in ("c", "syz", "all")
    }
    assert [program.kind for program in both.reproducers] == ["c"]
    assert kinds == {"c": ["c"], "syz": ["syz"], "all": ["c", "syz"]}
    assert not any(isinstance(step, SyzkallerSpec) for step in both.job(both.fix).steps)


def test_a_named_commit_of_syzkaller_is_built_before_the_kernel(both: Bug) -> None:
    whole = both.run_by("all")
    jobs = [whole.job(whole.fix), whole.shown(), whole.calibration(3)]
    assert whole.fix is not None
    jobs.append(whole.trial(whole.fix, 7))
    for job in jobs:
        first, *rest = job.steps
        assert isinstance(first, SyzkallerSpec)
        assert isinstance(first.source, GitSource)
        assert first.source.commit == "3ab38479ab60b50d5b27332bd001c78382877ecd"
        for step in rest:
            if isinstance(step, ReproduceSpec):
                assert [ref.step for ref in step.syzkaller] == [first.name]
                assert step.needs().syzkaller == []


def test_a_calibration_is_of_the_syzkaller_that_ran(both: Bug) -> None:
    syz = both.run_by("syz")
    job = syz.calibration(3)
    assert syz.calibration_tag in job.tags
    first, *rest = job.steps
    assert isinstance(first, SyzkallerSpec)
    other = first.model_copy(update={"source": GitSource(url="https://example.org/x", commit="x")})
    with pytest.raises(ValidationError, match="do not match"):
        JobRequest(steps=[other, *rest], tags=job.tags)
    build, runs = rest
    unused = runs.model_copy(update={"syzkaller": []})
    with pytest.raises(ValidationError, match="do not match"):
        JobRequest(steps=[first, build, unused], tags=job.tags)


def test_a_program_that_names_no_commit_is_the_workers_to_run(bundle: Path) -> None:
    (bundle / "repro.syz").write_text("getpid()\n")
    unnamed = ON_REQUEST.replace('syzkaller = "3ab38479ab60b50d5b27332bd001c78382877ecd"\n', "")
    (bundle / "bug.toml").write_text(BUG.replace("[regress]", unnamed))
    syz = bug.load(str(bundle)).run_by("syz")
    build, runs = syz.calibration(3).steps
    assert isinstance(build, BuildSpec)
    assert isinstance(runs, ReproduceSpec)
    assert runs.needs().syzkaller == ["default"]


def test_a_kind_that_a_bug_does_not_have_is_named(bundle: Path) -> None:
    with refused("no_such_program", match="there are: c"):
        bug.load(str(bundle)).run_by("syz")
