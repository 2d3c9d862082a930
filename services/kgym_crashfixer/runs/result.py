"""Results of a run: a patch for `git am`, and the evidence for it.

The patch's message contains text of a model, which may repeat an attacker's. `git am` recognises
the end of the message, and further headers, at the beginning of a line, so no line of the model's
may begin like one.
"""

import re
import textwrap
from dataclasses import dataclass
from email.utils import format_datetime, formataddr, parseaddr

from kgym.api.agent.nodes import Node, Tried
from kgym.api.agent.report import Evidence, OtherFix, Report
from kgym.api.agent.runs import FixView, RunView
from kgym.bugs.bug_file import BugFile
from kgym.errors import UserError
from kgym_crashfixer.platform_protocol import Begun

WIDTH = 72
# Characters of a subject (Documentation/process/submitting-patches.rst: 70 to 75).
SUBJECT = 75
AUTHOR = "CrashFixer <crashfixer@kgymsuite.invalid>"
_LONGEST_PROBLEM = 500
_ZERO = "0" * 40
_SYZBOT = re.compile(r"\bextid=([0-9a-f]{10,40})\b|syzbot\+([0-9a-f]{10,40})@")
_FIXES = re.compile(r"^Fixes: ([0-9a-f]{8,40} \(\".+\"\))$")
# Beginnings of lines that `git am` interprets, or that look like trailers.
_TAKEN = re.compile(r"^(?=diff -|---|\+\+\+|Index: |>?From |@@|[A-Za-z][A-Za-z-]*: )")
_HEADERS = re.compile(r"(?m)^--- a/(.*)\n\+\+\+ b/(.*)$")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class RunFix:
    """A fix with its run, node and bug."""

    run: RunView
    fix: FixView
    node: Node
    bug: BugFile
    begun: Begun


# --- the patch ----------------------------------------------------------------------------


def patch(run_fix: RunFix, author: str | None = None) -> str:
    """Return the fix as a mail that `git am` applies; raise UserError `bad_author`."""
    run, fix = run_fix.run, run_fix.fix
    sure = f", {fix.confidence:.0%} sure" if fix.confidence is not None else ""
    lines = [
        # The fixed date by which tools recognise a mail of git format-patch (git-format-patch(1)).
        f"From {_ZERO} Mon Sep 17 00:00:00 2001",
        f"From: {_author(author)}",
        f"Date: {format_datetime(run.ended_at or run.created_at)}",
        f"Subject: [PATCH] {subject(run_fix)}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        "Content-Transfer-Encoding: 8bit",
        "",
        *_message(run_fix),
        "---",
        f"Written by a program (kGymSuite's CrashFixer, run {run.id}, {_line(run.model)}), and",
        f"tested: the reproducer no longer crashes the kernel{sure}.",
        "Review it, and add your Signed-off-by before you send it.",
        "",
        *_diff(fix.diff),
        "-- ",
        "kGymSuite",
        "",
    ]
    return "\n".join(lines)


def subject(run_fix: RunFix) -> str:
    """Return the subject: area and crash, in 75 characters."""
    crash = _line(run_fix.begun.crash.title)
    kind = re.sub(r"^(?:KASAN|KCSAN|KMSAN|UBSAN|BUG|WARNING|INFO): (?=.)", "", crash)
    named = _line(f"{_area(run_fix.fix.diff)}: fix {kind}")
    return named if len(named) <= SUBJECT else textwrap.shorten(named, SUBJECT, placeholder="...")


def _message(run_fix: RunFix) -> list[str]:
    """Return the lines of the message: the crash, its cause, and tags."""
    tags = _tags(run_fix.bug)
    who = "syzbot" if any(tag.startswith("Reported-by: syzbot") for tag in tags) else "kGymSuite"
    lines = [f"{who} reports:", "", *_wrapped(run_fix.begun.crash.title, "  "), ""]
    why = run_fix.node.hypothesis or "\n\n".join(_reasons(run_fix))
    if why:
        lines += [*_prose(why), ""]
    return [*lines, *tags, *([""] if tags else [])][: None if tags else -1]


def _tags(bug: BugFile) -> list[str]:
    """Return the tags that follow from the bug's references."""
    fixes = [match for text in bug.references if (match := _FIXES.match(text.strip()))]
    tags = [f"Fixes: {match[1]}" for match in fixes[:1]]
    known = [match for text in bug.references if (match := _SYZBOT.search(text))]
    if known:
        ident = known[0][1] or known[0][2]
        tags += [
            f"Reported-by: syzbot+{ident}@syzkaller.appspotmail.com",
            f"Closes: https://syzkaller.appspot.com/bug?extid={ident}",
        ]
    return tags


def _prose(text: str) -> list[str]:
    """Wrap a model's text; keep paragraphs and list items separate."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        items = re.split(r"\n(?=\s*(?:[-*]|\d+[.)]) )", paragraph.strip("\n"))
        wrapped = [line for item in items for line in _wrapped(item, "")]
        if wrapped:
            lines += [*([""] if lines else []), *wrapped]
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    words = " ".join(_CONTROLS.sub(" ", text).split())
    hang = "  " if re.match(r"(?:[-*]|\d+[.)]) ", words) else ""
    lines = textwrap.wrap(
        words,
        WIDTH - 1,
        initial_indent=indent,
        subsequent_indent=indent + hang,
        # A split path or symbol could not be searched for.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [_TAKEN.sub(" ", line) for line in lines]


def _diff(diff: str) -> list[str]:
    """Return the lines of the diff, with git's headers."""
    with_headers = _HEADERS.sub(r"diff --git a/\1 b/\2\n\g<0>", diff.removesuffix("\n"))
    return with_headers.split("\n")


def _area(diff: str) -> str:
    """Return the area for the subject: the file, or the common folder of all files."""
    paths = [path.split("/") for path in re.findall(r"^\+\+\+ b/(\S+)", diff, re.MULTILINE)]
    if not paths:
        return "kernel"
    if len(paths) == 1:
        *folders, name = paths[0]
        stem = name.rpartition(".")[0] or name
        top = folders[1:] if folders and folders[0] in {"drivers", "net", "fs", "sound"} else []
        return "/".join([*top[:1], stem]) if top else stem
    shared = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
    return "/".join(shared) or paths[0][0]


def _author(author: str | None) -> str:
    name, address = parseaddr(_line(author or AUTHOR))
    if "@" not in address:
        raise UserError("bad_author", f"{author!r} is not `Name <name@example.org>`")
    return formataddr((name, address))


def _line(text: str) -> str:
    return " ".join(_CONTROLS.sub(" ", text).split())


def _reasons(run_fix: RunFix) -> list[str]:
    node = run_fix.node
    return node.candidates[node.chosen].reasons if node.chosen is not None else []


def _mended(node: Node) -> list[str]:
    return node.candidates[node.chosen].mended if node.chosen is not None else []


# --- the report ---------------------------------------------------------------------------


def report(run_fix: RunFix) -> Report:
    """Return the evidence for a fix, as data and as Markdown."""
    run, node = run_fix.run, run_fix.node
    ended: dict[str, int] = {}
    for other in run.nodes:
        if other.name != node.name:
            outcome = other.outcome or "not over"
            ended[outcome] = ended.get(outcome, 0) + 1
    made = Report(
        run=run.id,
        bug=run.bug,
        crash=run_fix.begun.crash.title,
        job=run_fix.begun.job,
        fix=run_fix.fix,
        hypothesis=node.hypothesis,
        reasons=_reasons(run_fix),
        mended=_mended(node),
        evidence=[_evidence(tried) for tried in node.runs],
        rejected=ended,
        others=[
            OtherFix(number=o.number, node=o.node, confidence=o.confidence, lines=o.lines)
            for o in run.ranked
            if o.number != run_fix.fix.number
        ],
        strategy=run.strategy,
        model=run.model,
        spent=run.spent,
        notes=run.notes,
    )
    return made.model_copy(update={"markdown": _markdown(made)})


def _evidence(tried: Tried) -> Evidence:
    return Evidence(
        verdict=str(tried.verdict),
        reason=tried.reason,
        confidence=tried.confidence,
        job=tried.job,
        findings=tried.findings,
    )


def _markdown(made: Report) -> str:
    spent = made.spent
    sure = f"{made.fix.confidence:.0%}" if made.fix.confidence is not None else "not measured"
    lines = [
        f"# {_line(made.crash)}",
        "",
        f"Bug `{made.bug}`, run {made.run}: strategy {made.strategy}, model {_line(made.model)}.",
        "",
        f"- Confidence that the crash is gone: {sure}",
        f"- The crash on the unpatched kernel: job {made.job or 'unknown'}",
        f"- Found by debug cycle {made.fix.node}; trees with this change: {made.fix.agreement}",
        f"- Took {spent.cost}, {spent.calls} questions, {spent.input_tokens} tokens in and"
        f" {spent.output_tokens} out, {spent.checks} checks, {spent.builds} kernels,"
        f" {spent.seconds:.0f} s",
        "",
        "## Runs of the patched kernel",
        "",
    ]
    for run in made.evidence:
        lines.append(f"- {run.verdict} (job {run.job or 'unknown'}): {_line(run.reason)}")
        lines += [f"  - {f.severity}: {f.check}: {_line(f.message)}" for f in run.findings]
    if made.hypothesis:
        lines += ["", "## Hypothesis", "", *(f"> {line}" for line in _prose(made.hypothesis))]
    if made.reasons:
        lines += ["", "## Reasons of the edits", "", *(f"- {_line(why)}" for why in made.reasons)]
    if made.mended:
        lines += ["", "## What was wrong before the patch was mended", ""]
        lines += [f"- {_line(problem)[:_LONGEST_PROBLEM]}" for problem in made.mended]
    if made.rejected:
        lines += ["", "## Other debug cycles", ""]
        lines += [f"- {count}: {outcome}" for outcome, count in sorted(made.rejected.items())]
    if made.others:
        lines += ["", "## Other patches that resolve the bug", ""]
        lines += [f"- {o.number}: {o.node}, {o.lines} lines" for o in made.others]
    if made.notes:
        lines += ["", "## Notes", "", *(f"- {_line(note)}" for note in made.notes)]
    # Longer than any run of backticks in the diff, which could otherwise end the block.
    fence = "`" * (3 + max((len(run) for run in re.findall("`+", made.fix.diff)), default=0))
    return "\n".join([*lines, "", "## Patch", "", f"{fence}diff", made.fix.diff, fence, ""])
