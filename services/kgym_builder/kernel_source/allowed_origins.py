"""Where a worker may take kernel sources from: the operator decides that, not a submitter.

Anybody may name a public address. Files of the worker's machine, and networks that only it can
reach, are closed unless the operator opens them. The checks apply to what is actually used: the
opened file, and the connected address, also after each redirect. Errors about files that are not
allowed are the same whether these exist or not.
"""

import asyncio
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

from kgym.errors import InfrastructureError, UserError
from kgym_builder.kernel_source.git_mirrors import LocalPlace, Mirrors

FOLDERS = "KGYM_SOURCES"
# With FOLDERS, the environment variables by which an operator allows more.
NETWORKS = "KGYM_SOURCE_NETWORKS"
PATCH_HOSTS = "KGYM_PATCH_HOSTS"

_LONGEST_URL = 2000
_RESOLVE_SECONDS = 30.0
_Network = IPv4Network | IPv6Network
# Addresses that a NAT64 gateway translates to IPv4 (RFC 6052).
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Origins:
    """Sources that the operator allows besides public addresses."""

    folders: tuple[Path, ...] = ()
    """Folders of this machine with files and Git repositories that any job may use."""
    networks: tuple[_Network, ...] = ()
    """Private networks that any job may reach (the worker itself: 127.0.0.0/8 and ::1)."""
    mirrors: Mirrors = Mirrors()  # noqa: RUF009 - frozen
    """Copies of Git repositories on this machine, used instead of their URLs."""
    patch_hosts: frozenset[str] = frozenset()
    """Hosts, with their ports if need be, from which patches are fetched."""

    @classmethod
    def named(
        cls,
        sources: str | None,
        networks: str | None,
        folders: tuple[Path, ...] = (),
        mirrors: Path | None = None,
        patch_hosts: str | None = None,
    ) -> Self:
        """Parse the operator's settings: folders as DIR:DIR, by default `folders`, and networks.

        `mirrors` is the folder with copies of Git repositories; `patch_hosts` are names.

        Raises UserError `bad_option` for a relative path or an invalid network.
        """
        if sources:
            folders = tuple(map(Path, filter(None, sources.split(os.pathsep))))
        for folder in folders:
            if not folder.is_absolute():
                raise UserError("bad_option", f"{FOLDERS}: {folder} is not an absolute path")
        named = (networks or "").replace(",", " ").split()
        try:
            allowed = tuple(map(ipaddress.ip_network, named))
        except ValueError as error:
            raise UserError("bad_option", f"{NETWORKS}: {error}, as in 10.1.0.0/16") from error
        hosts = frozenset((patch_hosts or "").lower().replace(",", " ").split())
        return cls(folders, allowed, Mirrors(mirrors), hosts)

    def check(self, url: str) -> Path | None:
        """Check a URL before anything uses it; return the path of a local one.

        Raises UserError `source_not_allowed`. The file system is not asked, so that a submitter
        cannot learn which files exist.
        """
        if len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise _refused(f"{url[:100]!r} is no URL: it is too long or has invalid characters")
        if url.startswith(("/", "file:///")):
            path = Path(os.path.normpath(url.removeprefix("file://")))
            self._allowed(path)
            return path
        try:
            parts = urlsplit(url)
            secret, host = "@" in parts.netloc, parts.hostname
            _ = parts.port
        except ValueError as error:
            raise _refused(f"{url} is no URL: {error}") from error
        if parts.scheme not in {"https", "http"} or not host or host.startswith("-"):
            raise _refused(
                f"{url}: kernel sources come from https:// and http:// URLs (Git's, too), or from"
                " absolute paths on the worker"
            )
        if secret:
            raise _refused("a URL must hold no user or password: others can read it in the job")
        return None

    def open(self, path: Path) -> IO[bytes]:
        """Open a regular file below the folders; anything else is never opened.

        Raises UserError `source_not_allowed`, `source_not_found`.
        """
        self._allowed(path)
        missing = UserError("source_not_found", f"{path} is no file that this worker may read")
        try:
            # O_PATH does not open it: opening a device has effects, and a FIFO blocks.
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                kind = os.fstat(descriptor)
                real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                # Files of /proc and the like are regular, have no size, and may never end.
                if not stat.S_ISREG(kind.st_mode) or not kind.st_size or not self._below(real):
                    raise missing
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                return os.fdopen(os.open(f"/proc/self/fd/{descriptor}", flags), "rb")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise missing from error

    def repositories(self, url: str) -> list[LocalPlace | None]:
        """Return the places of a URL's Git repository, best first; None stands for the URL itself.

        A local repository is shown to the sandbox by the allowed folder that contains it. Links,
        and objects borrowed from other repositories, are resolved in there, so they cannot lead
        elsewhere. Raises UserError `source_not_allowed`, InfrastructureError `bad_mirrors`.
        """
        mirror = self.mirrors.place(url)
        try:
            path = self.check(url)
        except UserError:
            if mirror is None:
                raise
            return [mirror]  # the operator allows the copy, even if the URL is not allowed
        if path is None:
            return [mirror, None] if mirror else [None]
        folder = self._allowed(path)
        if folder == Path("/"):
            return [LocalPlace(path, Path())]
        return [LocalPlace(folder, path.relative_to(folder))]

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host that may be connected to, at least one.

        Raises UserError `source_not_allowed`, even for a host that does not exist, so that nobody
        learns names of a private network; InfrastructureError `download_failed` if names cannot be
        resolved now.
        """
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                loop = asyncio.get_running_loop()
                resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise InfrastructureError("download_failed", f"cannot resolve {host} now") from error
        except (OSError, UnicodeError) as error:
            if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
                message = f"cannot resolve {host} now"
                raise InfrastructureError("download_failed", message) from error
            resolved = []
        allowed = [str(address[0]) for *_, address in resolved if self._reachable(str(address[0]))]
        if not allowed:
            raise _refused(
                f"{host} has no public address; the operator of the worker can allow networks"
                f" with {NETWORKS}"
            )
        return list(dict.fromkeys(allowed))

    def _allowed(self, path: Path) -> Path:
        """Return the allowed folder above the path, without a look at the file system."""
        for folder in self.folders:
            if path.is_relative_to(folder) and ".." not in path.parts:
                return folder
        raise _refused(
            f"{path} is in no folder that the worker's operator allows for kernel sources"
            f" ({FOLDERS})"
        )

    def _below(self, real: Path) -> bool:
        return any(real.is_relative_to(folder.resolve()) for folder in self.folders)

    def _reachable(self, text: str) -> bool:
        try:
            address = _real(ipaddress.ip_address(text))
        except ValueError:  # with a scope: link-local
            return False
        if any(address in network for network in self.networks):
            return True
        return address.is_global and not (address.is_multicast or address.is_reserved)


def _real(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address behind an IPv6 one, if there is one: both reach the same host."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(address.packed[-4:])
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _refused(message: str) -> UserError:
    return UserError("source_not_allowed", message)
