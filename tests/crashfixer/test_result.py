"""The patch that a run hands over, applied by `git am`; and the report beside it."""

import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kgym.api.agent.nodes import Candidate, Crash, Node, NodeOutcome, Tried
from kgym.api.agent.runs import FixView, Limits, NodeView, RunState, RunView, Spent
from kgym.api.steps import Finding, Verdict
from kgym.bugs import bundle
from kgym.errors import UserError
from kgym_crashfixer.platform_protocol import Begun
from kgym_crashfixer.runs import result
from tests.crashfixer.world import FILE, TEXT

FIXED = TEXT.replace("99", "16")
DIFF = f"""--- a/{FILE}
+++ b/{FILE}
@@ -1,3 +1,3 @@
 #define OTHER 1
-#define LIMIT 99
+#define LIMIT 16
 int f(int n) {{ return n < LIMIT; }}
"""
WHY = (
    "The limit is larger than the array, so that f() lets pass what g() then writes behind it. " * 3
)
HOSTILE = Path(__file__).with_name("hostile_answer.txt").read_text()


def run_fix(
    why: str | None = WHY, references: list[str] | None = None, diff: str = DIFF
) -> result.RunFix:
    fix = FixView(number=1, node="t0", diff=diff, confidence=0.95, notes=1, lines=2, agreement=2)
    finding = Finding(check="amputation", reason="early_return", message="it returns")
    tried = Tried(verdict=Verdict.NO_CRASH, reason="none crashed", confidence=0.95, job=8)
    node = Node(
        name="t0",
        parent=None,
        depth=1,
        hypothesis=why,
        candidates=[
            Candidate(
                text="",
                diff=diff,
                reasons=["the array has 16 elements"],
                mended=["It does not compile: 'limti' undeclared"],
            )
        ],
        chosen=0,
        outcome=NodeOutcome.RESOLVED,
        message=f"[PATCH] `limit`: fix the limit.\n\n{why}" if why else "",
        runs=[tried.model_copy(update={"findings": [finding]})],
    )
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    other = NodeView.of(node.model_copy(update={"name": "t1", "outcome": NodeOutcome.CRASHED}))
    view = RunView(
        id=7,
        bug="mine",
        strategy="forest",
        model="made:up",
        submitter="local",
        state=RunState.RESOLVED,
        created_at=now,
        ended_at=now,
        fixes=1,
        limits=Limits(),
        spent=Spent(known_dollars=1.5, calls=4, builds=2),
        nodes=[NodeView.of(node), other],
        ranked=[fix],
        jobs={},
    )
    bug = bundle.load("watch-queue-filter").file.model_copy(update={"references": references or []})
    crash = Crash(title="KASAN: slab-out-of-bounds Write in f", report="BUG: f")
    return result.RunFix(view, fix, node, bug, Begun(crash=crash, files={FILE: TEXT}, job=3))


def applied(tmp_path: Path, text: str) -> str:
    """Apply a mail with git; return the message of the commit."""
    tree = tmp_path / "linux"
    (tree / FILE).parent.mkdir(parents=True)
    (tree / FILE).write_text(TEXT)
    (tmp_path / "fix.patch").write_text(text)
    settings = ["-c", "user.name=A", "-c", "user.email=a@example.org"]

    def git(*words: str | Path) -> str:
        done = subprocess.run(
            ["git", *settings, *words], cwd=tree, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "base")
    git("am", tmp_path / "fix.patch")
    assert (tree / FILE).read_text() == FIXED
    assert git("show", "--format=", "--name-only").split() == [FILE]
    return git("show", "-s", "--format=%an <%ae>%n%B")


def test_git_applies_it_with_the_message_for_maintainers(tmp_path: Path) -> None:
    references = [
        'Fixes: 1234567890ab ("nobody has looked whether it wrote these lines")',
        "https://syzkaller.appspot.com/bug?extid=0123456789abcdef0123",
    ]
    text = result.kit(run_fix(references=references), "Ann Ä <ann@example.org>").mail
    author, subject, *message = applied(tmp_path, text).splitlines()
    assert author == "Ann Ä <ann@example.org>"
    assert subject == "watch: fix the limit"
    body = "\n".join(message)
    assert "syzbot reports:\n\n  KASAN: slab-out-of-bounds Write in f\n" in body
    assert " ".join(WHY.split()) in " ".join(body.split())
    assert all(len(line) <= 72 for line in message[:-3])
    assert body.rstrip().endswith(
        "\n\nReported-by: syzbot+0123456789abcdef0123@syzkaller.appspotmail.com\n"
        "Closes: https://syzkaller.appspot.com/bug?extid=0123456789abcdef0123"
    )
    assert "kGymSuite" not in body  # what stands below the line stays out of the log


@pytest.mark.attack
def test_a_models_words_end_no_message_and_add_no_tag(tmp_path: Path) -> None:
    log = applied(tmp_path, result.kit(run_fix(HOSTILE)).mail)
    for word in ("diff --git", "Signed-off-by: Linus", "Index: x", "three", "123456789012345"):
        assert word in log
    trailers = subprocess.run(
        ["git", "interpret-trailers", "--parse"],
        input=log,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Linus" not in trailers.stdout
    assert "\x1b" not in log


def test_without_a_hypothesis_the_reasons_of_the_edits_stand_there(tmp_path: Path) -> None:
    assert "the array has 16 elements" in applied(tmp_path, result.kit(run_fix(None)).mail)


def test_a_mail_does_not_tell_where_a_tape_is() -> None:
    fixed = run_fix()
    replayed = fixed.run.model_copy(update={"model": "replay:/home/ann/tape.jsonl"})
    mail = result.kit(replace(fixed, run=replayed)).mail
    assert "a recorded model" in mail
    assert "/home/ann" not in mail


@pytest.mark.parametrize("author", ["nobody", "", "a\nBcc: b@c.d", "A <a>"])
def test_an_author_without_an_address_is_refused(author: str) -> None:
    if author == "":
        assert "From: CrashFixer" in result.kit(run_fix(), author).mail
        return
    if "\n" in author:
        assert "\nBcc" not in result.kit(run_fix(), author).mail
        return
    with pytest.raises(UserError, match="is not `Name"):
        assert result.kit(run_fix(), author).mail


def test_the_report_holds_the_evidence(tmp_path: Path) -> None:
    made = result.report(run_fix())
    assert (made.job, made.rejected, made.evidence[0].job) == (3, {"crashed": 1}, 8)
    assert run_fix().run.nodes[0].problems == made.mended
    for words in (
        "job 8",
        "95%",
        "$1.50",
        "it returns",
        "+#define LIMIT 16",
        "1: crashed",
        "- It does not compile: 'limti' undeclared",
        "## Before you send it",
    ):
        assert words in made.markdown, words
    unpriced = Spent(calls=2, unpriced_calls=2)
    assert (unpriced.cost, unpriced.dollars) == ("cost unknown", None)
