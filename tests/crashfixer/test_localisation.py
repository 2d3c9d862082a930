"""Which files a fix may have to change: by the fix, by the report, by words."""

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
