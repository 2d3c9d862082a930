"""How large a kernel source may be, and how long it may take to come."""

from dataclasses import dataclass, replace

from kgym.host.sandbox_limits import SandboxLimits


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """What one kernel source may take of the worker, several times what an honest one does.

    Linux 6.18 has 93,000 files in 1.6 GB, compressed 150 MB; its Git repository, with all the
    stable branches, 6 GB, and Git takes 2 GB of memory to index that.
    """

    archive: int = 4 << 30
    """Bytes of a tarball."""
    tree: int = 8 << 30
    """Bytes of what is in it."""
    files: int = 300_000
    """Files in it, or in a Git repository."""
    repository: int = 16 << 30
    """Bytes of a Git repository."""
    fetch_memory: int = 4 << 30
    """Bytes of memory to fetch it."""
    seconds: float = 3600.0
    """To fetch it."""
    unpack_memory: int = 1 << 30
    unpack_seconds: float = 1200.0

    def fetching(self) -> SandboxLimits:
        """Return the limits of a sandbox that fetches a Git repository."""
        return self._limits(self.fetch_memory, self.repository)

    def unpacking(self) -> SandboxLimits:
        """Return the limits of a sandbox that writes the files of a source, packed or not."""
        return self._limits(self.unpack_memory, self.tree)

    def _limits(self, memory: int, disk: int) -> SandboxLimits:
        usual = SandboxLimits.of_host()
        return replace(
            usual,
            memory=min(memory, usual.memory),
            disk=disk,
            files=self.files,
            output=16 << 20,
        )
