"""The share of syzkaller's corpus, and of real reproducer runs, that is read right.

The aims are shares of all cases: single cases are no specification.
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from kgym.crash.report import parse
from kgym.crash.report.corpus import check, read_case
from tests.crash.reports import report_of
from tests.tables import rows

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no reference data beside the checkout")


@pytest.fixture(scope="module")
def shares() -> dict[str, float]:
    """The share of cases read right, by field."""
    right: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for path in (DATA / "syzkaller_reports").glob("*/*"):
        checked = check(read_case(path.read_bytes()))
        cases.update(checked.keys())
        right.update(name for name, is_right in checked.items() if is_right)
    return {name: right[name] / cases[name] for name in cases}


@needs_data
@pytest.mark.parametrize(("field", "aim"), rows(__file__, "corpus_aims.tsv"))
def test_the_corpus_is_read_right(shares: dict[str, float], field: str, aim: str) -> None:
    assert shares[field] >= float(aim)


CASE = b"""\
TITLE: divide error in my_fn
ALT: divide error in sys_my_fn
# a comment
TYPE: DoS
CORRUPTED: Y
EXECUTOR: proc=2, id=104

[    3.0] divide error: 0000 [#1] SMP\r
[    3.1] CPU: 1 PID: 4 Comm: syz.2.104 Not tainted\xff
[    3.2] RIP: 0010:my_fn+0x1/0x2

REPORT:
something else
"""


def test_a_case_tells_field_by_field_what_was_read_right() -> None:
    assert check(read_case(CASE)) == {
        "title": True,
        "alt": False,
        "type": True,
        "corrupted": True,
        "suppressed": True,
        "panicked": True,
        "executor": True,
        "report": False,
    }


def test_a_case_without_a_title_holds_no_crash() -> None:
    assert check(read_case(b"TITLE:\n\nall is well\n")) == {"no_crash": True}
    assert check(read_case(b"\n\nBUG: x\n")) == {"no_crash": False}


@pytest.mark.thorough
@needs_data
def test_logs_of_real_reproducer_runs_have_syzkallers_titles() -> None:
    logs = DATA / "kgym_crash_logs"
    titles: dict[str, str] = json.loads((logs / "titles.json").read_text())
    wrong = {}
    for name, title in titles.items():
        report = parse(gzip.decompress((logs / f"{name}.log.gz").read_bytes()))
        if report is None or report.title != title:
            wrong[title] = report and report.title
    assert len(wrong) <= 0.03 * len(titles), wrong


@needs_data
def test_consoles_of_the_fixed_kernels_hold_no_crash() -> None:
    for bug in (DATA / "syzbot_bugs").glob("*/title.txt"):
        crash = report_of((bug.parent / "console.log").read_bytes())
        assert crash.title == bug.read_text().strip()
        assert parse((bug.parent / "console.fixed.log").read_bytes()) is None
