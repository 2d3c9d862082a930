"""The bug of a run: shipped, in a local folder, or sent with the request."""

from collections.abc import Mapping
from os.path import normpath
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
    if request.folder is not None:
        return bundle.load(request.folder, mails=request.discussion)
    if request.bundle is None:
        if not bundle.is_shipped(request.bug):
            known = ", ".join(bundle.names())
            raise UserError("no_such_bug", f"there is no bug `{request.bug}`; shipped are: {known}")
        return bundle.load(request.bug, mails=request.discussion)
    _check(request.bundle)
    with scratch("bundle") as outer:
        bug, kernel = bundle.named(request.bug)
        folder = outer / _named(bug)
        _unpack(request.bundle, folder)
        name = f"{folder}@{kernel}" if kernel else str(folder)
        return bundle.load(name, untrusted=True, mails=request.discussion)


def _unpack(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except (OSError, ValueError) as error:  # a long name, a NUL, a name that is also a folder
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError("bad_bundle", f"{name[:100]}: cannot be a file: {why}") from error


def packed(folder: Path, bug: Bug) -> dict[str, str]:
    """Return the files of a bundle for a request, its mails only if the bug was loaded with them.

    Raises UserError `bad_bundle`.
    """
    files: dict[str, str] = {}
    names = bug.file.discussion.mails if bug.file.discussion else ()
    left, mails = MOST_BYTES, {normpath(folder / name) for name in names}
    for path in sorted(folder.rglob("*")):
        is_mail = str(path) in mails
        # A link may lead to any file outside the bundle.
        if not path.is_file() or path.is_symlink() or (is_mail and not bug.mboxes):
            continue
        left -= path.stat().st_size
        if left < 0 or len(files) == 100:
            most = f"100 files or {MOST_BYTES >> 20} MiB"
            raise UserError("bad_bundle", f"{folder}: more than {most} cannot be sent")
        try:
            # As in loading a bundle: mails have various encodings.
            text = path.read_text(errors="replace" if is_mail else None)
            files[str(path.relative_to(folder))] = text
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
