"""A kernel tree in a folder, as a mapping of paths to contents."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath


class SourceFolder(Mapping[str, bytes]):
    """The regular files below a folder, by path; none is behind a link, or in a Git repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, path: str) -> bytes:
        """Return a file's content."""
        here = self.folder
        # Links could lead out of the tree, to files of this machine.
        for part in PurePosixPath(path).parts:
            here = here / part
            if part in {"/", ".."} or here.is_symlink():
                raise KeyError(path)
        if not here.is_file():
            raise KeyError(path)
        return here.read_bytes()

    def __iter__(self) -> Iterator[str]:
        """Yield all paths, even of links."""
        for top, folders, names in os.walk(self.folder):
            folders[:] = set(folders) - {".git"}
            yield from (str(Path(top).relative_to(self.folder) / name) for name in names)

    def __len__(self) -> int:
        """Return the number of paths, counted anew."""
        return sum(1 for _ in self)
