"""Snippets of code as language models write them: find them in a file, and adapt their white space.

A snippet is found where the file has exactly its text, or else at the only place that equals it up
to white space. Unchanged lines keep the file's white space; new ones get its style. Pure.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate

from kgym.api.steps import Edit
from kgym.source.patching import not_once, occurrences, several
from kgym.source.whole_functions import MisfitError

# Maximum product of the line counts of both sides that are matched, in quadratic time.
_MOST_MATCHED = 4_000_000
# Maximum lines of context that are added to an edit to make its original unique in the file.
_MOST_ADDED = 200
_TAB = 8
# Lines that kernel code does not indent like their neighbours: directives and labels.
_UNINDENTED = re.compile(r"#|(?!default)\w+:(?!:)")
_BLANKS = re.compile(r"(?<! ) +(?=\t)")
_Scale = tuple[int, int]
_Widths = list[tuple[int, int]]


def edit(path: str, text: str, original: str, patched: str, line: int | None = None) -> Edit:
    """Return the edit that replaces a snippet of a file, in the file's white space.

    The edit's original occurs once in the file. `line` is the stated line of the snippet. Raises
    MisfitError with the file's lines.
    """
    begin, end = _place(path, text, original, line)
    lines = text.split("\n")
    first, last = text.count("\n", 0, begin), text.count("\n", 0, end) + 1
    own = lines[first:last]
    if text[begin:end] == original:
        head, tail = text[text.rfind("\n", 0, begin) + 1 : begin], text[end:].partition("\n")[0]
        before, after = own, f"{head}{patched}{tail}".split("\n")
        scale = _TAB, _depth(head, patched) if "\n" not in original else 0
    else:
        given = (part for part in original.split("\n") if part.strip())
        before = [next(given) if part.strip() else part for part in own]
        after = patched.strip("\n").split("\n")
        pairs = zip(before, own, strict=True)
        # The replaced lines may all lack their indentation: then the kept lines tell the scale.
        replaced = [(_width(line), _width(theirs)) for line, theirs in pairs if theirs.strip()]
        scale = _scale(replaced, _kept(after, own))
    guessed = [line.rstrip() for line in before] != [line.rstrip() for line in own]
    made = _respaced(before, after, own, scale, _tabbed(path, text), guessed)
    if made == after and before == own and text.count(original) == 1 and patched.strip():
        return Edit(file=path, original=original, replacement=patched)
    made = made if "".join(made).strip() else []  # a removal leaves no empty line
    for _ in range(_MOST_ADDED):
        if made and text.count("\n".join(lines[first:last])) == 1:
            break
        if first:
            first, made = first - 1, [lines[first - 1], *made]
        elif last < len(lines):
            last, made = last + 1, [*made, lines[last]]
    return Edit(file=path, original="\n".join(lines[first:last]), replacement="\n".join(made))


def function(path: str, text: str, original: str, patched: str) -> str:
    """Return a whole function in the white space of the file and of the function it replaces."""
    own, after = original.split("\n"), patched.split("\n")
    blanks = "\n\t" not in patched
    # The last line is its closing brace, which is not indented.
    scale = _scale([], _kept(after, own)) if blanks else (_TAB, -_width(after[-1]))
    return "\n".join(_respaced(own, after, own, scale, _tabbed(path, text), blanks))


def _place(path: str, text: str, original: str, line: int | None) -> tuple[int, int]:
    """Return the range of the snippet in the text: exact if it occurs once, else whole lines."""
    if text.count(original) == 1:
        return (at := text.index(original)), at + len(original)
    lines = text.split("\n")
    there = [number for number, part in enumerate(lines) if part.strip()]
    # It may occur only once as whole lines, although other lines contain it, too.
    for form in (str.rstrip, _key):
        whole = "\n".join(["", *(form(lines[number]) for number in there), ""])
        wanted = "\n".join(["", *(form(part) for part in original.split("\n") if part.strip()), ""])
        offsets = occurrences(whole, wanted) if len(wanted) > 1 else []
        places = [whole.count("\n", 0, at) for at in offsets]
        places = [place for place in places if there[place] + 1 == line] or places
        if len(places) == 1:
            starts = [0, *accumulate(len(part) + 1 for part in lines)]
            last = there[places[0] + wanted.count("\n") - 2]
            return starts[there[places[0]]], starts[last + 1] - 1
        if places:
            where = [there[place] for place in places]
            raise MisfitError(f"the original {several(text, path, where)}")
    raise MisfitError(f"the original {not_once(text, original, path)}")


def _respaced(
    before: Sequence[str],
    after: Sequence[str],
    own: Sequence[str],
    scale: _Scale,
    tabs: bool,
    guessed: bool,
) -> list[str]:
    """Return the lines of a replacement in a file's white space.

    `before` are the replaced lines as the model wrote them, `own` are the same lines in the file.
    `tabs` says whether the file is indented by tabs, `guessed` whether the model's white space
    differs from the file's: then indentation that is off by part of a tab counts as unchanged.
    """
    same = _aligned(before, after)
    lines: list[str] = []
    for number, line in enumerate(after):
        at = same.get(number)
        width = max(0, _scaled(_width(line), scale)) if not _UNINDENTED.match(line) else 0
        kept = at is not None and before[at].rstrip() == line.rstrip()
        if at is not None and (kept or (guessed and abs(width - _width(own[at])) % _TAB)):
            lines.append(own[at])
        elif not line.strip() or not tabs:
            lines.append(line.rstrip())
        else:
            code = own[at].lstrip() if at is not None and guessed else line.strip()
            lines.append("\t" * (width // _TAB) + " " * (width % _TAB) + _BLANKS.sub("", code))
    return lines


def _scaled(width: int, scale: _Scale) -> int:
    return width // scale[0] * _TAB + width % scale[0] + scale[1]


def _aligned(before: Sequence[str], after: Sequence[str]) -> dict[int, int]:
    """Map line numbers of `after` to those of equal lines of `before`; white space is ignored."""
    if len(before) * len(after) > _MOST_MATCHED:
        return {}
    keys = [_key(line) for line in before], [_key(line) for line in after]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    return {block.b + n: block.a + n for block in blocks for n in range(block.size)}


def _kept(after: Sequence[str], own: Sequence[str]) -> _Widths:
    """Return the indentations of the lines that a replacement keeps: in it, and in the file."""
    return [(_width(after[b]), _width(own[a])) for b, a in _aligned(own, after).items()]


def _scale(pairs: _Widths, kept: _Widths) -> _Scale:
    """Return the model's columns per level, and how much deeper the file's lines are indented."""
    units = (8, 4, 2) if all(width % 8 == 0 for width, _ in pairs or kept) else (4, 2, 8)
    for known in (pairs, kept):
        scaled = ((unit, own - _scaled(width, (unit, 0))) for unit in units for width, own in known)
        fits = Counter(scaled)
        best = [scale for scale, count in fits.items() if count == max(fits.values())]
        if best and fits[best[0]] * 2 > len(known):
            break
    return next((scale for scale in best if scale[1] == 0), best[0] if best else (_TAB, 0))


def _depth(head: str, patched: str) -> int:
    """Return the indentation that later lines lack if a snippet lacks that of its first line."""
    first, *rest = patched.split("\n")
    widths = [_width(line) for line in rest if line.strip() and not _UNINDENTED.match(line)]
    if head.strip() or not widths:
        return 0
    within = not first.rstrip().endswith((";", "}")) and widths[0] <= _width(head)
    return _width(head) if within or 0 in widths else 0


def _tabbed(path: str, text: str) -> bool:
    return path.endswith((".c", ".h", ".S")) and text.count("\n\t") >= text.count("\n  ")


def _width(line: str) -> int:
    """Return the columns of a line's indentation."""
    line = line.expandtabs(_TAB) if line[:200].lstrip(" ")[:1] == "\t" else line
    return len(line) - len(line.lstrip(" "))


def _key(line: str) -> str:
    return "".join(line.split())
