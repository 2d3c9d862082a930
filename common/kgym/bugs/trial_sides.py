"""What both sides of a trial must have in common, apart from the patch. Pure."""

from collections.abc import Collection, Iterator

from kgym.api.steps import Finding, Severity, UsedRoot


def other_compiler(names: Collection[str]) -> Iterator[Finding]:
    """Yield a blocking finding if the kernels (with the bug first) were built by other compilers.

    A name such as `gcc`, or an approximate version, may mean different compilers on two hosts.
    """
    first, *others = dict.fromkeys(names) or [""]
    if others:
        yield _blocking(
            "other_compiler",
            f"the kernel with the bug was built by {first}, that with the fix by {others[0]}:"
            " either may be why it is quiet; name a compiler that is the same on all workers, such"
            " as bookworm/gcc-12",
        )


def other_root(before: UsedRoot, after: UsedRoot) -> Iterator[Finding]:
    """Yield a blocking finding if the guests of the two sides started from different roots.

    The disk that a worker makes has the host's release, with that day's package versions.
    """
    if (before.format, before.sha256) != (after.format, after.sha256):
        yield _blocking(
            "other_root",
            f"the guests with the bug started from {_root_words(before)}, those with the fix from"
            f" {_root_words(after)}: either may be why it is quiet; run both again with one `root`,"
            " or with the disk of the run with the bug (`vm.root` with its `step`)",
        )


def _root_words(root: UsedRoot) -> str:
    if root.format is None:
        return "an initramfs"
    what = f" ({root.system})" if root.system else ""
    return f"the {root.format} disk of SHA-256 {str(root.sha256)[:16]}…{what}"


def _blocking(reason: str, message: str) -> Finding:
    return Finding(check="detector", severity=Severity.BLOCKING, reason=reason, message=message)
