"""Mirrors: copies of Git repositories on this machine, by the URL that they are copies of.

A folder holds them, and a table `map.json`: an object from URL to path, relative to the folder or
absolute. The operator keeps it, as with `kgym mirror`; it is read again whenever it is needed.
"""

from dataclasses import dataclass
from pathlib import Path

from kgym.source.mirror_table import mirror_table


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A repository of this machine: the folder that a sandbox is shown, and the path in it."""

    folder: Path
    inside: Path


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The mirrors in a folder, or none."""

    folder: Path | None = None

    def place(self, url: str) -> LocalPlace | None:
        """Return where the mirror of this URL is; with or without `.git` at its end it is the same.

        Raises InfrastructureError `bad_mirrors` for a table that cannot be read.
        """
        path = self.table().get(plain(url))
        if path is None or self.folder is None:
            return None
        # Shown with those beside it: mirrors of forks borrow objects from each other.
        if path.is_relative_to(self.folder):
            return LocalPlace(self.folder, path.relative_to(self.folder))
        return LocalPlace(path, Path())

    def table(self) -> dict[str, Path]:
        """Return the paths by their URLs, which are `plain`."""
        if self.folder is None:
            return {}
        paths = mirror_table(self.folder)
        return {plain(url): self.folder / path for url, path in paths.items()}


def plain(url: str) -> str:
    """Return a URL as one writes it in short."""
    return url.rstrip("/").removesuffix(".git").rstrip("/")
