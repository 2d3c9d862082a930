"""Patches from the archive of a mailing list: a mail, or its thread like `b4 am`.

The operator allows hosts by name, by default none: a submitter must not choose what a worker asks.
"""

import asyncio
import re
import zlib
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from kgym.api.steps import Patch
from kgym.api.steps.kernel import TEXT
from kgym.errors import InfrastructureError, UserError
from kgym.source import diff_text
from kgym_builder.kernel_source.allowed_origins import PATCH_HOSTS, Origins
from kgym_builder.kernel_source.download import download
from kgym_builder.kernel_source.source_limits import SourceLimits

_SECONDS = 60.0
_FILE = re.compile(r"raw|mbox|.*\.(?:mbox|patch|diff|eml|txt)(?:\.gz)?")


async def fetch(patch: Patch, origins: Origins, target: Path) -> Patch:
    """Return the patch at a patch's URL: a raw mail, a file, or an mbox with a mail's whole thread.

    It is downloaded to `target`. Raises UserError `url_not_allowed`, `source_not_found`,
    `source_too_large` or as the download does.
    """
    url = _thread(patch.url or "")
    named = urlsplit(url).netloc.lower()

    def allow(url: str) -> None:
        host = urlsplit(url).netloc.lower()
        # Also after redirects, which must stay on the host that was named.
        if host not in origins.patch_hosts or host != named:
            what = f"{url}: this worker fetches no patches from {host}: its operator allows hosts"
            remedy = f"with {PATCH_HOSTS}; or save the mails, and give their file"
            raise UserError("url_not_allowed", f"{what} {remedy}")

    bounds = SourceLimits(archive=TEXT, seconds=_SECONDS)
    await download(url, target, None, origins, bounds, lambda *_: None, allow)
    data = await asyncio.to_thread(target.read_bytes)
    if data.startswith(b"\x1f\x8b"):
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, TEXT + 1)
        except zlib.error as error:
            raise InfrastructureError("download_failed", f"{url}: damaged: {error}") from error
    if len(data) > TEXT:
        raise UserError("patch_too_large", f"{url} has over {TEXT} bytes; save the patches alone")
    text = diff_text.decode(data, url)
    return Patch(name=patch.name, diff=text, drop_binaries=patch.drop_binaries)


def _thread(url: str) -> str:
    """Return the address of a mail's whole thread; that of a raw mail or a file stays."""
    parts = urlsplit(url)
    words = [word for word in parts.path.split("/") if word]
    if words and _FILE.fullmatch(words[-1]):
        return urlunsplit(parts._replace(fragment=""))
    if len(words) < 2:
        raise UserError("malformed_patch", f"{url} names no mail: give https://HOST/LIST/ID/")
    folder = "all" if words[0] == "r" else words[0]  # lore.kernel.org redirects /r/ID to /all/ID
    path = f"/{folder}/{words[1]}/t.mbox.gz"
    return urlunsplit(parts._replace(path=path, query="", fragment=""))
