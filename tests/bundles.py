"""Bundles of bugs of the small make tree."""

from pathlib import Path

from kgym.api.steps import TarballSource

# The edit that brings the bug back.
REGRESS = """[[regress.edits]]
file = "kernel/watch_queue.c"
original = "type >= WATCH_TYPE__NR"
replacement = "type >= 100"
"""


def tarball(source: TarballSource) -> str:
    """Return the lines of a bundle that name this kernel source."""
    return f'tarball = "{source.url}"\nsha256 = "{source.sha256}"'


def small_bundle(
    folder: Path, kernel: str, more: str = "", title: str = "WARNING in watch_filter"
) -> Path:
    """Write a bundle: `kernel` names the source, `more` follows the name of the reproducer."""
    folder.mkdir(exist_ok=True)
    (folder / "repro.c").write_text("int main(void) { return 0; }\n")
    (folder / "fragment").write_text("CONFIG_BASE=y\n")
    (folder / "bug.toml").write_text(
        f'title = "{title}"\n[kernel]\n{kernel}\nbase = "allnoconfig"\n'
        f'fragments = ["fragment"]\n[reproducer]\nfile = "repro.c"\n{more}'
    )
    return folder
