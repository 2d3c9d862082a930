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
    """Bytes of a tarball, or of what a Git server sends of one commit."""
    tree: int = 8 << 30
    """Bytes of what is in it."""
    files: int = 300_000
    """Files in it, or in a Git repository."""
    repository: int = 16 << 30
    """Bytes of a whole Git repository."""
    fetch_memory: int = 4 << 30
    """Bytes of memory to fetch it."""
    seconds: float = 3600.0
    """To fetch it."""
    silence_seconds: int = 180
    """After which a Git server that sends next to nothing is given up."""
    objects_at_once: int = 8000
    """Files that a Git server is asked for at once: what a break loses. 25 MB of a kernel."""
    unpack_memory: int = 1 << 30
    unpack_seconds: float = 1200.0

    def fetching(self, most: int) -> SandboxLimits:
        """Return the limits of a sandbox that fetches at most so many bytes by Git."""
        return self._limits(self.fetch_memory, most)

    def looking(self) -> SandboxLimits:
        """Return the limits of a sandbox that lists the objects of a commit."""
        return replace(self._limits(self.unpack_memory, 0), output=100 * (self.files + 10_000))

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
