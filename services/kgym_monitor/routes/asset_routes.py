"""The files that pages load: `/assets/VERSION/NAME`."""

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from kgym.web.access import PublicFiles
from kgym_monitor.assets import Assets

_KEEP = {"Cache-Control": "public, max-age=31536000, immutable"}


class Files(PublicFiles):
    """Serves what `assets` lists, and nothing else; from memory, as it is little."""

    def __init__(self, assets: Assets) -> None:
        super().__init__(directory=None)
        self._assets = assets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the file of this name, kept by browsers: another version is another path."""
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        version, _, name = path.partition("/")
        found = self._assets.files.get(name) if version == self._assets.version else None
        answer: Response
        if found is None or scope["method"] not in {"GET", "HEAD"}:
            answer = PlainTextResponse("There is no such file.\n", 404)
        else:
            answer = Response(found.content, headers=_KEEP, media_type=found.media_type)
        await answer(scope, receive, send)
