"""The card of a published dataset: its README.md, made from its bugs and the figures of results."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kgym.atomic_files import replace_file
from kgym.bench import attempt_files, dataset
from kgym.bench.dataset import Dataset
from kgym.bench.report import Report
from kgym_cli.bench import leaderboard

NAME = "README.md"
_MARK = "<!-- Made by `kgym bench push`. To keep a card of your own, remove this line. -->"


def write(folder: Path) -> None:
    """Write the card of a folder, unless somebody has written another."""
    path = folder / NAME
    if path.exists() and _MARK not in path.read_text(errors="replace"):
        return
    tried = (folder / attempt_files.NAME).exists()
    report = leaderboard.of_folder(folder) if tried else None
    # The folder may come from anywhere: writing would follow a link of this name.
    path.with_name(f".{NAME}.part").unlink(missing_ok=True)
    replace_file(path, _card(dataset.load(folder), report))


def _card(whole: Dataset, report: Report | None) -> str:
    files = {"bugs": dataset.BUGS} | ({"attempts": attempt_files.NAME} if report else {})
    head = {
        "pretty_name": whole.name,
        "license": "other",
        "tags": ["linux-kernel", "program-repair", "kgymsuite"],
        "configs": [{"config_name": name, "data_files": file} for name, file in files.items()],
    }
    facts = [bug.facts for bug in whole.bugs]
    counts: dict[str, Sequence[str]] = {
        "class": [bug.crash_class for bug in facts],
        "fixed": [f"{bug.fixed:%Y}" if bug.fixed else "unknown" for bug in facts],
        "programs": [bug.reproducer for bug in facts],
        "subsystem": [name for bug in facts for name in bug.subsystems or ("unknown",)],
    }
    # JSON is YAML.
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", _MARK]
    lines += [f"\n# {_plain(whole.name)}\n", f"{_plain(whole.description)}\n"]
    lines += [
        f"{len(facts)} bugs of the Linux kernel, from: {_plain(whole.source or 'unknown')}.",
        f"The SHA-256 of `{dataset.BUGS}` is {whole.about.sha256}: a dataset never changes.",
        "`kgym bench pull` gets it. Fixes and kernel sources are GPL-2.0-only, like Linux.",
    ]
    for name, values in counts.items():
        sums = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
        lines += _table([[name, "bugs"], *([value, str(count)] for value, count in sums)])
    if report is not None:
        lines += ["\n## Results\n", f"{report.attempts} attempts; intervals are at 95 %."]
        lines += [*_table(leaderboard.table(report)), "", *map(_plain, map(str, report.failed))]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(map(_plain, row))} |" for row in rows]
    return ["", lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def _plain(text: str) -> str:
    """Escape text for Markdown: names come from anywhere."""
    words = " ".join(text.split())
    return re.sub(r"[^\w ,.:;%()$/+@=?'-]", lambda mark: f"&#{ord(mark[0])};", words)
