"""Limits on the size of a kernel source and on the time to fetch it."""

from dataclasses import dataclass, replace

from kgym.host.sandbox_limits import SandboxLimits


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Limits of one kernel source, each several times what an honest one needs.

    Linux 6.18 has 93,000 files in 1.6 GB, compressed 150 MB. Its Git repository with all stable
    branches has 6 GB, and Git needs 2 GB of memory to index it.
    """

    archive: int = 4 << 30
    """Bytes of a tarball, or of a Git server's answers for one commit."""
    tree: int = 8 << 30
    """Bytes of its files."""
    files: int = 300_000
    """Files in it, or in a Git repository on disk."""
    repository: int = 16 << 30
    """Bytes of a whole Git repository."""
    fetch_memory: int = 4 << 30
    """Bytes of memory to fetch a source."""
    seconds: float = 3600.0
    """Time to fetch it."""
    silence_seconds: int = 180
    """Time after which a Git server that sends almost nothing is given up."""
    objects_at_once: int = 8000
    """Files to ask a Git server for at once: the loss of an aborted fetch. 25 MB of a kernel."""
    unpack_memory: int = 1 << 30
    unpack_seconds: float = 1200.0

    def fetching(self, most: int) -> SandboxLimits:
        """Return the limits of a sandbox that fetches at most so many bytes by Git."""
        # A list of commits takes 200 bytes for each.
        return replace(self._limits(self.fetch_memory, most), output=64 << 20)

    def looking(self) -> SandboxLimits:
        """Return the limits of a sandbox that lists the objects of a commit."""
        return replace(self._limits(self.unpack_memory, 0), output=100 * (self.files + 10_000))

    def unpacking(self) -> SandboxLimits:
        """Return the limits of a sandbox that writes the files of a source, packed or not."""
        return self._limits(self.unpack_memory, self.tree)

    def _limits(self, memory: int, disk: int) -> SandboxLimits:
        usual = SandboxLimits.of_host()
        return replace(
            usual, memory=min(memory, usual.memory), disk=disk, files=self.files, output=16 << 20
        )
