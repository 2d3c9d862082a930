"""What is found where a program no longer does its work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Call, Finding, Reached, Severity, Work
from kgym_vmmanager.evidence.compared_work import findings, lacks, unknown

NAMES = st.sampled_from(["pipe2", "ioctl", "read", "brk", "keyctl", "futex"])
RESULTS = st.sampled_from(["ok", "EINVAL", "EPERM", "ENOSYS", "pending", "stuck", "died"])
WORKS = st.builds(
    Work,
    calls=st.dictionaries(st.tuples(NAMES, RESULTS), st.integers(1, 99)).map(
        lambda calls: [Call(name=n, result=r, count=c) for (n, r), c in calls.items()]
    ),
    unfinished=st.none() | NAMES,
)


def work(*calls: str, crash: str | None = None) -> Work:
    """Return a profile of calls like `ioctl=EINVAL`."""
    parts = [call.split("=") for call in calls]
    return Work(
        calls=[Call(name=name, result=result, count=3) for name, result in parts], unfinished=crash
    )


BEFORE = work("brk=ok", "pipe2=ok", "ioctl=ok", crash="keyctl")


def severities(after: Work, before: Work | None = BEFORE) -> dict[str, Severity]:
    return {finding.reason: finding.severity for finding in findings(before, after)}


def test_the_same_work_gives_no_finding() -> None:
    assert severities(work("brk=ok", "pipe2=ok", "ioctl=ok", "keyctl=ok")) == {}


@pytest.mark.parametrize(
    ("keyctl", "expected"),
    [
        ("keyctl=ENOKEY", {"crash_refused": Severity.NOTE}),
        ("keyctl=EPERM", {"crash_refused": Severity.BLOCKING}),
        ("keyctl=ENOSYS", {"crash_refused": Severity.BLOCKING}),
        ("keyctl=pending", {"call_waits": Severity.BLOCKING}),
        ("keyctl=stuck", {"call_stuck": Severity.BLOCKING}),
        ("keyctl=died", {"died_in_call": Severity.BLOCKING}),
        ("getpid=ok", {"crash_not_called": Severity.NOTE}),
    ],
)
def test_what_becomes_of_the_call_that_crashed(keyctl: str, expected: dict[str, Severity]) -> None:
    assert severities(work("pipe2=ok", "ioctl=ok", keyctl)) == expected


def test_a_call_refused_before_the_crash_is_told_with_its_numbers() -> None:
    (finding,) = findings(BEFORE, work("pipe2=ok", "ioctl=EINVAL", "keyctl=ok"))
    assert (finding.reason, finding.severity) == ("call_refused", Severity.NOTE)
    assert "succeeded 3 times" in finding.message
    assert "fails in all 3 calls: 3 x EINVAL" in finding.message


def test_what_forbids_the_work_of_root_blocks() -> None:
    assert severities(work("pipe2=EACCES", "ioctl=ok", "keyctl=ok")) == {
        "call_refused": Severity.BLOCKING
    }
    loaded = work("bpf=ok", "ioctl=ok", crash="keyctl")
    assert severities(work("bpf=EACCES", "ioctl=ok", "keyctl=ok"), loaded)["call_refused"] == "note"


def test_a_call_that_has_something_to_wait_for_may_wait() -> None:
    read = work("pipe2=ok", crash="read")
    assert severities(work("pipe2=ok", "read=pending"), read) == {"call_waits": Severity.NOTE}
    assert severities(work("pipe2=ok", "read=pending"), work("pipe2=ok", "read=pending")) == {}


def test_a_call_that_hung_is_the_one_that_crashed() -> None:
    hung = work("epoll_create1=ok", "epoll_ctl=ok", "epoll_ctl=stuck")
    fixed = work("epoll_create1=ok", "epoll_ctl=ok", "epoll_ctl=ELOOP")
    assert severities(fixed, hung) == {"crash_refused": Severity.NOTE}
    sleeps = work("epoll_create1=ok", "epoll_ctl=ok", "epoll_ctl=pending")
    assert severities(sleeps, hung) == {"call_waits": Severity.BLOCKING}


def test_nothing_of_its_work_done() -> None:
    assert lacks(BEFORE, work("brk=ok", "pipe2=EMFILE")) == (
        "nothing of the program's work is done any more: ioctl is never called; pipe2 is refused"
        " (3 x EMFILE), and succeeded before"
    )
    assert "pipe2 does not come back" in str(lacks(BEFORE, work("pipe2=pending")))
    assert "not known: its trace ended" in str(lacks(BEFORE, work("execve=ok", "brk=ok")))
    assert lacks(BEFORE, work("pipe2=ok")) is None
    assert lacks(None, work()) is None
    assert lacks(work("brk=ok", crash="futex"), work("futex=EINVAL")) is None


def test_functions_on_the_way() -> None:
    def reached(*flags: bool) -> Work:
        functions = [Reached(function=f"f{n}", reached=flag) for n, flag in enumerate(flags)]
        return BEFORE.model_copy(update={"reached": functions, "unfinished": None})

    before = BEFORE.model_copy(update={"unfinished": None})
    assert severities(reached(True, True), before) == {}
    assert severities(reached(False, True), before) == {"function_not_reached": Severity.NOTE}
    assert severities(reached(False, False), before) == {"way_not_taken": Severity.BLOCKING}
    [finding] = findings(before, reached(False, False), others_served=True)
    assert (finding.reason, finding.severity) == ("way_not_taken", Severity.BLOCKING)
    refuses = work("pipe2=ok", "ioctl=EINVAL").model_copy(
        update={"reached": reached(False, False).reached}
    )
    for served, severity in ((True, Severity.NOTE), (False, Severity.BLOCKING)):
        reasons = {
            finding.reason: finding.severity
            for finding in findings(before, refuses, others_served=served)
        }
        assert reasons["way_not_taken"] == severity


def test_a_program_that_cannot_be_seen_blocks() -> None:
    assert unknown("SSH was lost").severity is Severity.BLOCKING


@pytest.mark.thorough
@given(WORKS)
def test_a_kernel_that_does_the_same_is_never_blamed(before: Work) -> None:
    fixed = before.model_copy(
        update={"calls": [call for call in before.calls if call.result != "stuck"]}
    )
    blamed = {"call_refused", "call_waits", "call_stuck", "died_in_call"}
    assert not blamed & severities(fixed, before).keys()
    assert lacks(before, fixed) is None


@pytest.mark.thorough
@given(WORKS, WORKS)
def test_whatever_was_seen_is_compared(before: Work, after: Work) -> None:
    for finding in findings(before, after):
        assert isinstance(finding, Finding)
        assert finding.check == "work"
    died = any(call.result == "died" for call in after.calls)
    assert ("died_in_call" in severities(after, None)) == died
