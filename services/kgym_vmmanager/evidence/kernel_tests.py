"""The kernel's own tests in a guest, and the comparison of a patched kernel with the unpatched one.

A part of a test counts if it passes in two runs on the unpatched kernel. It fails on the patched
one if it passes in neither of two runs there.
"""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kgym.api.steps import Finding, KernelTestRun, Severity, Strict
from kgym.host.quoted_words import quoted
from kgym_vmmanager.guest.guest_session import GuestSession
from kgym_vmmanager.guest.paths import TESTS
from kgym_vmmanager.guest.ssh import Ssh

# A guest kills a test that hangs; if it does not answer then, the guest is lost.
_MORE_SECONDS = 15.0
# 512-byte blocks of each file that a test writes, and bytes of its output that are read.
_MOST_BLOCKS = 64 << 10
_MOST_OUTPUT = 200_000
_MOST_PARTS = 500
_LONGEST_NAME = 150
_LAST_LINES = 6
_LAST_CHARACTERS = 600
# A program that a signal ended has the status 128 + its number; SIGKILL ends a test at its limit.
_SIGNAL = 128
_KILLED = _SIGNAL + 9
# TAP, and KTAP of KUnit, which indents the results of parts (Documentation/dev-tools/ktap.rst).
# Scripts write `ok: NAME`.
_RESULT = re.compile(r"\s*(not )?ok\b[ \t:]*\d{0,9}[ \t]*(?:-[ \t])?[ \t]*(.{0,2000})", re.ASCII)
# A part that is skipped, or may fail, has not passed.
_DIRECTIVE = re.compile(r"#\s*(?:SKIP|XFAIL|TODO)\b", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\w*\d\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of all tests in a guest, and of a single one."""

    all: float
    each: float


# A patched kernel's guests may run on a busier host: that a test takes longer is no failure.
BEFORE = Limits(30, 5)
AFTER = Limits(60, 20)


@dataclass(frozen=True, slots=True)
class KernelTestEnd:
    """How one test ended in one guest: the parts that passed, and its last lines.

    The empty part is the test as a whole.
    """

    passed: frozenset[str]
    words: str
    status: int = 0


# How the tests of a run ended; those that did not run are missing.
KernelTestEnds = Mapping[str, KernelTestEnd]


def passed(status: int, output: str) -> frozenset[str]:
    """Return the parts of a test that passed, by its exit status and output; at most _MOST_PARTS.

    The empty part is the test as a whole.
    """
    parts = {""} if status == 0 else set()
    # Names may hold times, addresses and process ids, so a part is known by its words and by its
    # place among the parts with the same words.
    places: Counter[str] = Counter()
    for match in filter(None, map(_RESULT.match, output.splitlines())):
        # Cut first: the search in long words is slow.
        name = _NUMBER.sub("N", quoted(match[2].partition(" # ")[0], _LONGEST_NAME))
        places[name] += 1
        if not match[1] and not _DIRECTIVE.search(match[2]):
            parts.add(f"{name or 'part'} ({places[name]})")
        if places.total() == _MOST_PARTS:
            break
    return frozenset(parts)


class KernelTestSession(GuestSession):
    """A session that runs tests, one after the other."""

    def __init__(self, tests: Sequence[str], limits: Limits) -> None:
        super().__init__()
        self.tests, self.limits = tests, limits
        self.test_ends: dict[str, KernelTestEnd] = {}
        # Tests that were begun.
        self.begun = 0

    async def work(self, ssh: Ssh) -> None:
        """Run all tests."""
        begin = time.monotonic()
        for test in self.tests:
            limit = min(self.limits.each, self.limits.all - (time.monotonic() - begin))
            if limit < 1:
                break
            self.begun += 1
            end = await _end(ssh, test, int(limit))
            if end.status == _KILLED and limit < self.limits.each:
                break  # killed at the limit of all tests, which says nothing about this one
            self.test_ends[test] = end


async def _end(ssh: Ssh, test: str, seconds: int) -> KernelTestEnd:
    program, *arguments = shlex.split(test)
    argv = shlex.join([f"./{PurePosixPath(program).name}", *arguments])
    # The output goes to a file: a pipe would be held open by processes that the test leaves behind.
    output = f"{TESTS}.output"
    command = (
        f"cd {TESTS} && (ulimit -f {_MOST_BLOCKS}; exec timeout -s KILL {seconds} {argv})"
        f" </dev/null >{output} 2>&1; status=$?; head -c {_MOST_OUTPUT} {output}; exit $status"
    )
    status, printed = await ssh.run(command, limit=seconds + _MORE_SECONDS)
    text = printed[:_MOST_OUTPUT].decode(errors="replace")
    words = quoted("\n".join(text.splitlines()[-_LAST_LINES:]), _LAST_CHARACTERS)
    return KernelTestEnd(passed(status, text), words, status)


# --- two kernels compared. Pure -----------------------------------------------------------------


class Baseline(Strict):
    """What passes in both of two runs on the unpatched kernel: the parts of each test."""

    parts: dict[str, list[str]] = {}
    left_out: list[str] = []
    """Tests of which no part passes in both, and why."""

    @classmethod
    def of(cls, tests: Sequence[str], first: KernelTestEnds, second: KernelTestEnds) -> "Baseline":
        """Return what two runs of these tests have in common."""
        baseline = cls()
        for test in tests:
            ends = [run[test] for run in (first, second) if test in run]
            if len(ends) < 2:
                why = f"on the unpatched kernel, it does not fit into {BEFORE.all:g} s"
            elif ended := next((end for end in ends if end.status >= _SIGNAL), None):
                # The part at which it is killed differs from run to run.
                why = f"on the unpatched kernel, it is killed (after {BEFORE.each:g} s): "
                why += ended.words
            elif both := ends[0].passed & ends[1].passed:
                baseline.parts[test] = sorted(both)
                continue
            else:
                worse = min(ends, key=lambda end: len(end.passed))
                why = f"it does not pass on the unpatched kernel, either: {worse.words}"
            baseline.left_out.append(f"{test}: {why}")
        return baseline


def compared(baseline: Baseline, first: KernelTestEnds, second: KernelTestEnds) -> KernelTestRun:
    """Return what two runs on a patched kernel show; the second is empty if nothing failed."""
    good = 0
    failed: list[str] = []
    left_out = list(baseline.left_out)
    for test, parts in baseline.parts.items():
        ends = [run[test] for run in (first, second) if test in run]
        lost = [frozenset(parts) - end.passed for end in ends]
        if not ends:
            left_out.append(f"{test}: it does not fit into {AFTER.all:g} s")
        elif not any(lost):
            good += 1
        elif len(lost) == 2 and (both := lost[0] & lost[1]):
            failed.append(f"{test}: {max(both) or 'as a whole'}: {ends[0].words}")
        else:
            words = next(end.words for end, parts in zip(ends, lost, strict=True) if parts)
            left_out.append(f"{test}: it fails, but not in two runs: {words}")
    return KernelTestRun(passed=good, failed=failed, left_out=left_out)


def findings(run: KernelTestRun) -> Iterator[Finding]:
    """Yield what the kernel's own tests show against a patch."""
    if run.failed:
        more = f"; {len(run.failed) - 1} more kernel tests fail" if run.failed[1:] else ""
        yield Finding(
            check="tests",
            severity=Severity.BLOCKING,
            reason="kernel_tests_fail",
            message=f"it passes on the unpatched kernel and fails here: {run.failed[0]}{more}",
        )
