"""Static files of the pages: our own, and listed files of npm packages.

There is no bundler: browsers get these files unchanged. In the checkout packages
are in `node_modules/` (`./run` installs them by package-lock.json); in a wheel the named files lie
beside this one, where the build has put them (`hatch_build.py`).
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from kgym.errors import InfrastructureError
from kgym.web.access import PublicFiles

_HERE = Path(__file__).parent
_OWN = _HERE / "static"
_PACKAGED = _HERE / "packages"
_INSTALLED = _HERE.parents[1] / "node_modules"
# Files of packages that are served; nothing else of a package is.
PACKAGED_FILES = (_HERE / "packaged_files.txt").read_text().split()
_KEEP = {"Cache-Control": "public, max-age=31536000, immutable"}
_TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".css": "text/css"}


@dataclass(frozen=True, slots=True)
class Asset:
    """Content and type of a file."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Assets:
    """All files by name; `version` changes with any of them."""

    files: dict[str, Asset]
    version: str

    def url(self, name: str) -> str:
        """Return the path of a file; raise KeyError if it does not exist."""
        if name not in self.files:
            raise KeyError(f"no asset {name!r}")
        return f"/assets/{self.version}/{name}"


@cache
def assets() -> Assets:
    """Read all files once; raise InfrastructureError `front_end_missing` without packages."""
    # A wheel has no node_modules, a checkout no packages folder.
    folder = _PACKAGED if _PACKAGED.is_dir() else _INSTALLED
    paths = {name: folder / name for name in PACKAGED_FILES}
    paths |= {str(path.relative_to(_OWN)): path for path in _OWN.rglob("*") if path.is_file()}
    try:
        files = {name: _asset(path) for name, path in sorted(paths.items())}
    except FileNotFoundError as error:
        raise InfrastructureError(
            "front_end_missing",
            "npm packages of the web pages are not installed. In a checkout, `./run kgym monitor`"
            " installs them; before `pip install .`, run `npm ci --ignore-scripts`",
            file=error.filename,
        ) from error
    digest = hashlib.sha256()
    for name, asset in files.items():
        digest.update(name.encode() + b"\0" + asset.content + b"\0")
    return Assets(files, digest.hexdigest()[:12])


def _asset(path: Path) -> Asset:
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return Asset(path.read_bytes(), kind or "application/octet-stream")


class AssetFiles(PublicFiles):
    """Serves the files in `assets`, and nothing else, from memory."""

    def __init__(self, assets: Assets) -> None:
        super().__init__(directory=None)
        self._assets = assets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a file. Browsers cache it for good: the version is part of its path."""
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        version, _, name = path.partition("/")
        asset = self._assets.files.get(name) if version == self._assets.version else None
        answer: Response
        if asset is None or scope["method"] not in {"GET", "HEAD"}:
            answer = PlainTextResponse("There is no such file.\n", 404)
        else:
            answer = Response(asset.content, headers=_KEEP, media_type=asset.media_type)
        await answer(scope, receive, send)
