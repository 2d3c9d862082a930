"""What the output of the kernel's own tests tells, and two kernels compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym_vmmanager.evidence.kernel_tests import (
    Baseline,
    KernelTestEnd,
    KernelTestEnds,
    compared,
    passed,
)

KSELFTEST = """\
TAP version 13
1..5
# futex_wait: Test the behavior of FUTEX_WAIT
ok 1 futex_wait private
not ok 2 futex_wait anon page shared
ok 3 # SKIP no huge pages
not ok 4 futex_wait file backed # XFAIL known
ok 5 - pid 104 waits at 0x7f00 # id:3
ok 6 - pid 105 waits at 0x7f80
# Totals: pass:1 fail:1 xfail:1 xpass:0 skip:1 error:0
"""
KUNIT = """\
    # Subtest: ext4_inode_test
    1..1
        ok 1 - 1901-12-13 Lower bound
        not ok 2 2446 Upper bound
    not ok 1 - inode_test_xtimestamp_decoding
not ok 1 - ext4_inode_test
"""
ENDS = [
    KernelTestEnd(passed(0, "ok 1 a\nok 2 b\n"), "all"),
    KernelTestEnd(passed(1, "ok 1 a\nnot ok 2 b\n"), "b fails"),
    KernelTestEnd(frozenset(), "the guest is lost"),
]


def runs(ends: tuple[int, ...]) -> tuple[KernelTestEnds, KernelTestEnds]:
    """Return two runs of the test `t`; those without an end did not come to it."""
    first, second, *_ = *({"t": ENDS[end]} for end in ends), {}, {}
    return first, second


def test_programs_name_their_parts() -> None:
    waits = "pid N waits at N"
    assert passed(1, KSELFTEST) == {"futex_wait private (1)", f"{waits} (1)", f"{waits} (2)"}
    assert passed(0, KUNIT) == {"", "N-N-N Lower bound (1)"}
    assert passed(0, "") == {""}
    assert passed(4, "needs root") == frozenset()


@given(st.text(max_size=3000) | st.text("notk 1#-\n", max_size=3000))
def test_any_output_is_read(output: str) -> None:
    for name in passed(1, output):
        assert name.isprintable()
        assert 0 < len(name) <= 160


def test_endless_output_is_bounded() -> None:
    output = "\n".join(f"ok {number} {'x' * 9000}" for number in range(2000))
    assert len(passed(1, output)) == 500


@pytest.mark.parametrize(
    ("before", "after", "good", "fails"),
    [
        ((0, 0), (0,), 1, ""),
        ((0, 0), (1, 1), 0, "t: b (1): b fails"),
        ((0, 0), (2, 2), 0, "t: b (1): the guest is lost"),
        ((1, 1), (2, 2), 0, "t: a (1): the guest is lost"),
        ((0, 1), (1,), 1, ""),  # b does not count
        ((0, 0), (1, 0), 0, ""),  # by chance
        ((0, 0), (1,), 0, ""),  # no time for a second run
        ((0, 0), (), 0, ""),
        ((0, 2), (2, 2), 0, ""),
        ((0,), (2, 2), 0, ""),
    ],
)
def test_a_new_failure_repeats(
    before: tuple[int, ...], after: tuple[int, ...], good: int, fails: str
) -> None:
    baseline = Baseline.of(["t"], *runs(before))
    run = compared(baseline, *runs(after))
    assert (run.passed, run.failed) == (good, [fails] if fails else [])
    # What neither passes nor fails is named.
    assert len(run.left_out) == (not good and not fails)
