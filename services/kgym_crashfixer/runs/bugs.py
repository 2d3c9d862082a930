"""The bug of a run: shipped, in a local folder, or sent with the request."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from kgym.api.agent.runs import RunRequest
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.errors import UserError
from kgym.host.scratch import scratch

# Characters of a bundle in a request.
MOST_BYTES = 8 << 20


def load(request: RunRequest) -> Bug:
    """Load the bug of a request; raise UserError for an unknown bug or an invalid bundle."""
    bug = _load(request)
    return bug if request.discussion else replace(bug, mboxes=())


def _load(request: RunRequest) -> Bug:
    if request.folder is not None:
        return bundle.load(request.folder)
    if request.bundle is None:
        if not bundle.is_shipped(request.bug):
            known = ", ".join(bundle.names())
            raise UserError("no_such_bug", f"there is no bug `{request.bug}`; shipped are: {known}")
        return bundle.load(request.bug)
    _check(request.bundle)
    with scratch("bundle") as outer:
        bug, kernel = bundle.named(request.bug)
        folder = outer / _named(bug)
        _unpack(request.bundle, folder)
        return bundle.load(f"{folder}@{kernel}" if kernel else str(folder), untrusted=True)


def _unpack(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except (OSError, ValueError) as error:  # a long name, a NUL, a name that is also a folder
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError("bad_bundle", f"{name[:100]}: cannot be a file: {why}") from error


def packed(folder: Path) -> dict[str, str]:
    """Return the files of a bundle for a request; raise UserError `bad_bundle`."""
    files: dict[str, str] = {}
    left = MOST_BYTES
    for path in sorted(folder.rglob("*")):
        # A link may lead to any file outside the bundle.
        if not path.is_file() or path.is_symlink():
            continue
        left -= path.stat().st_size
        if left < 0 or len(files) == 100:
            most = f"100 files or {MOST_BYTES >> 20} MiB"
            raise UserError("bad_bundle", f"{folder}: more than {most} cannot be sent")
        try:
            files[str(path.relative_to(folder))] = path.read_text()
        except UnicodeDecodeError as error:
            raise UserError("bad_bundle", f"{path}: {error}") from error
    return files


def _named(bug: str) -> str:
    if PurePosixPath(bug).name != bug or bug in {".", ".."} or bug in bundle.names():
        raise UserError(
            "bad_bundle", f"`{bug}` cannot name a bundle in a request: it is shipped, or a path"
        )
    return bug


def _check(files: Mapping[str, str]) -> None:
    """Reject bundles whose files would not be below their folder, each under a name of its own."""
    for name in files:
        path = PurePosixPath(name)
        # `./bug.toml` is refused, as it is the file `bug.toml`, which may be there, too.
        if path.is_absolute() or ".." in path.parts or not path.parts or str(path) != name:
            raise UserError(
                "bad_bundle", f"{name[:100]!r} is not the plain path of a file below it"
            )
    if sum(map(len, files.values())) > MOST_BYTES:
        raise UserError("bad_bundle", f"the bundle has more than {MOST_BYTES >> 20} MiB")
