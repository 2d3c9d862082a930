"""Parsers for models' answers: lenient about form, since edits are applied strictly afterwards.

An answer is hostile and may have megabytes, so every parser takes linear time.
"""

import re

# Characters of an answer that are read: the largest window of a model holds fewer.
LONGEST = 1 << 20
# Characters of an explanation that later questions repeat, and pay for.
LONGEST_WORDS = 16_000
_MOST_HYPOTHESES = 32


class UnreadableError(Exception):
    """The answer lacks what was asked for."""


def solution(text: str) -> str:
    """Return the hypothesis: the last `<solution>`, or else all prose."""
    solutions = _tagged(text[:LONGEST], "solution")
    words = solutions[-1] if solutions else fences(text[:LONGEST])[1]
    if not words.strip():
        raise UnreadableError("there is no <solution>, nor any other text")
    return words.strip()[:LONGEST_WORDS]


def ranked(text: str) -> list[str]:
    """Return the hypotheses by `<ranking>`, or else in order; duplicates are removed.

    Without tags, a hypothesis is the text below a numbered heading or list number, or else all
    prose. Hypotheses that the ranking omits come last.
    """
    text = text[:LONGEST]
    words, mark, ranking = _RANKING.sub("<ranking>", text, count=1).rpartition("<ranking>")
    words, ranking = (words, ranking) if mark else (text, "")
    solutions = _tagged(text, "solution") or _numbered(words, _SOLUTION, _NUMBER) or [words]
    hypotheses = [solution.strip()[:LONGEST_WORDS] for solution in solutions[:_MOST_HYPOTHESES]]
    if not any(hypotheses):
        raise UnreadableError("there is no <solution>")
    ranking = _ASIDE.sub("", ranking)
    # Numbers in parentheses, and the ranks in a numbered list, do not refer to hypotheses.
    numbers = _NAMED.findall(ranking) or re.findall(r"(?<!\d)\d{1,4}(?!\d)", ranking)
    first = [hypotheses[at] for at in (int(n) - 1 for n in numbers) if 0 <= at < len(hypotheses)]
    return [hypothesis for hypothesis in dict.fromkeys([*first, *hypotheses]) if hypothesis]


def message(text: str) -> str:
    """Return a commit's message: `<subject>`, an empty line, `<body>`; empty without them."""
    subject, body = ("".join(_tagged(text[:LONGEST], tag)[-1:]) for tag in ("subject", "body"))
    message = f"{' '.join(subject.split())}\n\n{body.strip()}"
    return message[:LONGEST_WORDS] if subject.strip() and body.strip() else ""


def _numbered(text: str, *headings: re.Pattern[str]) -> list[str]:
    """Return the texts below headings numbered from 1, of the first kind of heading that occurs."""
    for heading in headings:
        starts: list[tuple[int, int]] = []
        for match in heading.finditer(text):
            if int(match[1]) == len(starts) + 1:
                starts.append(match.span())
        ends = [begin for begin, _ in starts[1:]] + [len(text)]
        if starts:
            return [text[start[1] : end] for start, end in zip(starts, ends, strict=True)]
    return []


def attempts(text: str) -> list[str]:
    """Return the text of each `<attempt>`, or below each heading; or else the whole answer."""
    text = text[:LONGEST]
    return _tagged(text, "attempt") or _numbered(text, _ATTEMPT) or [text]


def chosen(text: str, count: int) -> int:
    """Return the index of the chosen item out of `count`, from 0.

    It is the first number in the last `<choice>`, or in the last line that names the best one, or
    else the last number of all.
    """
    text = text[:LONGEST]
    # Models often discuss all items before they choose, so the last mention counts.
    places = _tagged(text, "choice") or _CHOICE.findall(text)
    for place in reversed(places or [text]):
        numbers = [int(number) for number in re.findall(r"(?<![\w.])\d{1,4}(?![\w.]*\w)", place)]
        fitting = [number for number in numbers if 1 <= number <= count]
        if fitting:
            return fitting[0 if places else -1] - 1
    raise UnreadableError(f"there is no <choice> between 1 and {count}")


_END = re.compile(r"(?m)^```[^\S\n]*$\n?")
_FENCE = re.compile(r"(?ms)^```[^\n]*\n(.*?)^```[^\S\n]*$\n?")
_RANKING = re.compile(r"(?im)^[^\w\n<]{0,20}(?:final )?rank(?:ing|ed)?\b[^\w\n]{0,20}|<ranking>")
_NAME = r"(?:solution|explanation|hypothesis|cause)\s{0,3}[#*]{0,3}"
_NAMED = re.compile(rf"(?i)\b{_NAME}(\d{{1,4}})")
_SOLUTION = re.compile(rf"(?im)^[^\w\n]{{0,20}}{_NAME}(\d{{1,2}})\b[^\w\n<]{{0,20}}")
_ATTEMPT = re.compile(r"(?im)^[^\w\n]{0,20}(?:patch|attempt)\s{0,3}#?(\d{1,2})\b[^\w\n<]{0,20}")
_NUMBER = re.compile(r"(?m)^[^\w\n]{0,9}(\d{1,2})[.)](?!\d)[ \t*]{0,9}")
_ASIDE = re.compile(r"\([^()\n]{0,200}\)|\d+(?:\.\d+)?\s?%|</ranking>.*", re.DOTALL)
_CHOICE = re.compile(r"(?im)^[^\w\n]{0,20}(?:choice|selected|best)\b.*$")


def _tagged(text: str, tag: str) -> list[str]:
    """Return the texts between the tags; the last one may lack its end."""
    pieces = re.split(rf"(?i)<{tag}>", text)[1:]
    return [re.split(rf"(?i)</{tag}>", piece)[0] for piece in pieces]


def fences(text: str) -> tuple[list[str], str]:
    """Split a text into code fences and the rest; an unterminated fence belongs to the rest."""
    # Only up to the last end of a fence: searching for another one would take quadratic time.
    end = max((match.end() for match in _END.finditer(text)), default=0)
    return _FENCE.findall(text[:end]), _FENCE.sub("", text[:end]) + text[end:]


def code(body: str) -> str:
    """Return the code in a tag, without its fence and the line ends around it."""
    body = re.sub(r"\A[ \t]*\r?\n|\r?\n[ \t]*\Z", "", body)
    fenced = re.fullmatch(r"```[^\n]*\n(.*?)\n?```", body.strip(), re.DOTALL)
    return fenced[1] if fenced else body
