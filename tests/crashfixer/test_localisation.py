"""Which files a fix may have to change: by the fix, by the report, by words."""

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.bugs import bundle
from kgym.errors import UserError
from kgym_crashfixer import localisation
from kgym_crashfixer.localisation import Frequencies, by_words, of_fix, of_report
from tests.conftest import ROOT

BUG = bundle.load("watch-queue-filter")
GUILTY = ROOT.parent / "shared" / "data" / "syzkaller_reports" / "guilty"
LOGS = ROOT.parent / "shared" / "data" / "kgym_crash_logs"
REPORT = Path(__file__).with_name("report.txt").read_text()


def test_the_files_of_a_report_come_by_likelihood() -> None:
    files = of_report(REPORT)
    assert files == ["fs/pipe.c", "kernel/watch_queue.c", "fs/maker.c", "include/linux/watch.h"]


def test_what_nearly_all_reports_name_is_no_candidate() -> None:
    common = ("do_syscall_64", "dump_stack", "kthread")
    known = Frequencies.load()
    assert all(known.function(name) > 0.2 for name in common)
    assert known.function("pipe_write") < 0.03
    assert not {"lib/dump_stack.c", "arch/x86/entry/common.c"} & set(of_report(REPORT))


def test_a_report_without_source_lines_names_no_file() -> None:
    bare = "\n".join(line.split(" fs/")[0] for line in REPORT.splitlines()[:2])
    assert of_report(bare) == []
    assert of_report("nothing to see") == []


def test_detectors_allocators_and_entry_code_do_not_count_as_depth() -> None:
    own = "BUG: KASAN: invalid-free in a+0x1/0x2\nCall Trace:\n <TASK>\n"
    service = "".join(
        f" {name}+0x1/0x2 {file}:9\n"
        for name, file in (
            ("kasan_report_invalid_free", "mm/kasan/report.c"),
            ("____kasan_slab_free", "mm/kasan/common.c"),
            ("kfree", "mm/slub.c"),
            ("mutex_lock", "kernel/locking/mutex.c"),
        )
    )
    last = (
        " put_fs_context+0x1/0x2 fs/fs_context.c:470\n do_it+0x1/0x2 arch/x86/entry/common.c:80\n"
    )
    assert of_report(own + service + last)[0] == "fs/fs_context.c"
    first, second = " frob_a+0x1/0x2 fs/a.c:1\n", " frob_b+0x1/0x2 fs/b.c:1\n"
    assert of_report(own + first + service + second)[:2] == ["fs/a.c", "fs/b.c"]


def test_functions_without_a_line_are_in_the_files_that_define_them() -> None:
    report = (
        "BUG: KASAN: use-after-free in f+0x1/0x2\nCall Trace:\n <TASK>\n frob_f.isra.0+0x1/0x2\n"
        " frob_g+0x1/0x2\n frob_h+0x1/0x2\n </TASK>\n"
    )
    assert localisation.functions(report) == ["frob_f", "frob_g", "frob_h"]
    defined = {"frob_f": ["fs/f.c"], "frob_g": ["fs/g.c", "net/g.c"], "frob_h": ["fs/h.c"]}
    # Of the files that define a name, the one beside the other functions' is meant.
    assert of_report(report, defined) == ["fs/f.c", "fs/g.c", "fs/h.c"]


# Why the fixed file of a report is not among its first five.
MISSED = {
    "WARNING in iommufd_test_check_pages": "no frame is in mm/gup.c",
    "WARNING in ext4_update_inline_data": "no frame is in fs/ext4/xattr.c",
    "general protection fault in fq_codel_enqueue": "no frame is in the header virtio_net.h",
    "general protection fault in ip_set_comment_free": "macros of a header made its functions",
}


def published_reports() -> list[tuple[str, set[str]]]:
    """Return reports of bugs of kBenchSyz, each with the files of its fix."""
    fixed: dict[str, set[str]] = {}
    for path in (LOGS.parent / "kbenchsyz").iterdir():
        bug = json.loads(path.read_text())
        for title in {bug["title"], bug["display-title"]}:
            fixed.setdefault(title.partition(" (")[0], set()).update(bug["patch_modified_files"])
    titles = json.loads((LOGS / "titles.json").read_text())
    return [
        ((LOGS / f"{name}.report").read_text(errors="replace"), fixed[title])
        for name, title in titles.items()
        if title in fixed
    ]


def own_reports() -> list[tuple[str, set[str]]]:
    """Return reports of ported and of shipped bugs, each with the files of its fix."""
    reports = []
    for path in filter(Path.is_dir, (LOGS.parent / "syzbot_bugs").iterdir()):
        fix = re.findall(r"^\+\+\+ b/(\S+)", (path / "regress.patch").read_text(), re.MULTILINE)
        reports.append(((path / "console.log").read_text(errors="replace"), set(fix)))
    shipped = (
        (1, "io_uring/rw.c"),
        (2, "net/ipv4/udp.c"),
        (3, "fs/fs_context.c"),
        (8, "ipc/shm.c"),
    )
    for number, file in shipped:
        packed = (LOGS.parent / "real_model" / f"run{number}-calls.txt.xz").read_bytes()
        calls = lzma.decompress(packed).decode()
        reports.append((calls.partition("<issue>\n")[2].partition("\n</issue>")[0], {file}))
    return reports


@pytest.mark.thorough
@pytest.mark.skipif(not LOGS.is_dir(), reason="the reports are not beside the checkout")
def test_the_fixed_file_is_among_the_first_five_of_real_reports() -> None:
    reports = published_reports()
    missed = [text for text, files in reports if not first_five(text) & files]
    assert len(reports) == 40
    titles = {title for title in MISSED for text in missed if title.partition(" in ")[2] in text}
    assert (titles, len(missed)) == (set(MISSED), len(MISSED))


@pytest.mark.skipif(not LOGS.is_dir(), reason="the consoles are not beside the checkout")
def test_the_fixed_file_is_among_the_first_five_of_ported_and_shipped_bugs() -> None:
    reports = own_reports()
    assert len(reports) == 8
    assert [text[:500] for text, files in reports if not first_five(text) & files] == []


def first_five(text: str) -> set[str]:
    """Return the first files of a report whose functions are looked up as in Linux 6.1.192."""
    rows = (Path(__file__).with_name("defined.tsv")).read_text().splitlines()
    known = {name: paths.split() for name, paths in (row.split("\t") for row in rows)}
    names = localisation.functions(text)
    return set(of_report(text, {name: known.get(name, []) for name in names})[:5])


@pytest.mark.skipif(not GUILTY.is_dir(), reason="the report corpus is not beside the checkout")
def test_the_guilty_file_of_each_case_comes_first() -> None:
    for path in GUILTY.iterdir():
        head, _, text = path.read_text(errors="replace").partition("\n\n")
        assert of_report(text)[0] == head.removeprefix("FILE: ").strip()


def test_the_fix_says_it_where_it_may() -> None:
    assert of_fix(BUG) == ["kernel/watch_queue.c"]
    with pytest.raises(UserError, match="has no fix"):
        of_fix(replace(BUG, fix=None))


def test_words_find_the_file_that_has_them() -> None:
    documents = {
        "fs/pipe.c": "static void pipe_write(void) { struct pipe_inode_info *pipe; }",
        "kernel/watch_queue.c": "watch_queue_set_filter(type_filter, watch)",
        "mm/other.c": "unsigned long nothing;",
    }
    files = by_words("BUG in watch_queue_set_filter, by pipe", documents)
    assert files[0] == "kernel/watch_queue.c"
    assert "mm/other.c" not in files
    assert by_words("!!", documents) == []
    assert by_words("watch", {}) == []


def test_functions_that_few_reports_name_are_searched_for() -> None:
    assert localisation.rare_functions(REPORT)[0] == "pipe_write"
    assert "do_syscall_64" not in localisation.rare_functions(REPORT)
    assert "ghost" not in localisation.rare_functions(REPORT)
