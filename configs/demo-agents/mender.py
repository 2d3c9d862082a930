"""A scripted agent: its first try does not compile. Once it sees that, it makes the right change.

Without feedback it stays with its first try. /agent/patches has the right changes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

TREE = Path("/linux")


def tried() -> str:
    """Return what `run_kernel` says."""
    done = subprocess.run(["/KBDr/run_kernel"], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    return done.stdout


def change(patch: dict) -> None:
    """Make a change: a unified diff, or edits."""
    if patch["diff"] is not None:
        words = ["git", "apply", "-p1", "-"]
        subprocess.run(words, cwd=TREE, input=patch["diff"], text=True, check=True)
    for edit in patch["edits"]:
        path = TREE / edit["file"]
        text = path.read_text()
        assert edit["original"] in text, f"{path}: nothing to replace"
        path.write_text(text.replace(edit["original"], edit["replacement"], 1))


def main() -> int:
    """Work on the bug."""
    bug = os.environ["KENV_SYZBOT_BUG_ID"]
    patch = json.loads((Path("/agent/patches") / f"{bug}.json").read_text())
    change(patch)
    changed = subprocess.run(
        ["git", "diff", "--name-only"], cwd=TREE, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    source = TREE / next(name for name in changed if name.endswith(".c"))
    right = source.read_text()
    source.write_text(right + "#error a broken first try\n")
    if "Compilation error" in tried():
        source.write_text(right)
        tried()
    return 0


if __name__ == "__main__":
    sys.exit(main())
