"""Mirrors: copies of Git repositories on this machine, by the original's URL.

A folder holds the copies and a table `map.json`, an object from URL to path, relative to the folder
or absolute. The operator maintains it, for example with `kgym mirror`; every use reads it again.
"""

from dataclasses import dataclass
from pathlib import Path

from kgym.source.mirror_table import mirror_table


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A repository of this machine: the folder to show to a sandbox, and the path inside it."""

    folder: Path
    inside: Path


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The mirrors in a folder, or none."""

    folder: Path | None = None

    def place(self, url: str) -> LocalPlace | None:
        """Return the place of this URL's mirror; a `.git` at the URL's end does not matter.

        Raises InfrastructureError `bad_mirrors` if the table cannot be read.
        """
        path = self.table().get(plain(url))
        if path is None or self.folder is None:
            return None
        # Shown with those beside it: mirrors of forks borrow objects from each other.
        if path.is_relative_to(self.folder):
            return LocalPlace(self.folder, path.relative_to(self.folder))
        return LocalPlace(path, Path())

    def table(self) -> dict[str, Path]:
        """Return the paths of the mirrors by `plain` URL."""
        if self.folder is None:
            return {}
        paths = mirror_table(self.folder)
        return {plain(url): self.folder / path for url, path in paths.items()}


def plain(url: str) -> str:
    """Return the URL without `.git` and slashes at its end."""
    return url.rstrip("/").removesuffix(".git").rstrip("/")
