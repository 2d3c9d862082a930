"""Where a worker may take kernel sources from: that is the operator's decision, not a submitter's.

Anybody may name a public address. The files of the worker's own machine, and the networks that
only it can reach, are open where the operator says so. What is checked is what is used: the file
that was opened, the address that is connected to, also after each redirect.
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
# By which settings an operator allows more: so they are called in the environment.
NETWORKS = "KGYM_SOURCE_NETWORKS"

_LONGEST_URL = 2000
_RESOLVE_SECONDS = 30.0
_Network = IPv4Network | IPv6Network
# Addresses that a NAT64 gateway makes IPv4 of (RFC 6052).
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Origins:
    """What the operator allows beside public addresses."""

    folders: tuple[Path, ...] = ()
    """Below them lie files and Git repositories of this machine that any job may use."""
    networks: tuple[_Network, ...] = ()
    """Private networks (the worker's own host: 127.0.0.0/8 and ::1) that any job may reach."""
    mirrors: Mirrors = Mirrors()  # noqa: RUF009 - frozen
    """Copies on this machine, which stand for the repositories at their URLs."""

    @classmethod
    def named(
        cls,
        sources: str | None,
        networks: str | None,
        folders: tuple[Path, ...] = (),
        mirrors: Path | None = None,
    ) -> Self:
        """Return what an operator has named, folders as DIR:DIR; `folders` where none are named.

        `mirrors` is the folder of copies of Git repositories.

        Raises UserError `bad_option` for what is neither an absolute path nor a network.
        """
        if sources:
            folders = tuple(map(Path, filter(None, sources.split(os.pathsep))))
        for folder in folders:
            if not folder.is_absolute():
                raise UserError("bad_option", f"{FOLDERS}: {folder} is no absolute path")
        named = (networks or "").replace(",", " ").split()
        try:
            return cls(folders, tuple(map(ipaddress.ip_network, named)), Mirrors(mirrors))
        except ValueError as error:
            raise UserError("bad_option", f"{NETWORKS}: {error}, as in 10.1.0.0/16") from error

    def check(self, url: str) -> Path | None:
        """Check an address before anything is done with it; return the path of a local one.

        Raises UserError `source_not_allowed`. Files are not looked at, so that nobody learns
        which there are.
        """
        if len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise _refused(f"{url[:100]!r} is no URL: it is too long, or holds odd characters")
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
        """Open a regular file below the folders; of another kind, it is not touched.

        Raises UserError `source_not_allowed`, `source_not_found`.
        """
        self._allowed(path)
        missing = UserError("source_not_found", f"{path} is no file that this worker may read")
        try:
            # Only found, not opened: that alone has effects on some devices.
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                kind = os.fstat(descriptor)
                real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                # Files of /proc and the like are regular ones, have no size, and may never end.
                if not stat.S_ISREG(kind.st_mode) or not kind.st_size or not self._below(real):
                    raise missing
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                return os.fdopen(os.open(f"/proc/self/fd/{descriptor}", flags), "rb")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise missing from error

    def repositories(self, url: str) -> list[LocalPlace | None]:
        """Return where a URL's Git repository is, the first choice first; None stands for the URL.

        A repository of this machine is shown by the allowed folder that it lies in. Links are
        followed in there: so they lead to nothing that is not allowed, whenever somebody changes
        them. Raises UserError `source_not_allowed`, InfrastructureError `bad_mirrors`.
        """
        mirror = self.mirrors.place(url)
        try:
            path = self.check(url)
        except UserError:
            if mirror is None:
                raise
            return [mirror]  # the operator has allowed the copy, whatever the URL would need
        if path is None:
            return [mirror, None] if mirror else [None]
        folder = self._allowed(path)
        if folder == Path("/"):
            return [LocalPlace(path, Path())]
        return [LocalPlace(folder, path.relative_to(folder))]

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host that may be connected to, at least one.

        Raises UserError `source_not_allowed`, also where there is no such host, so that nobody
        learns the names of a private network; InfrastructureError `download_failed` where names
        cannot be resolved now.
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
        """Return the folder that the path lies below, by its words alone."""
        for folder in self.folders:
            if path.is_relative_to(folder) and ".." not in path.parts:
                return folder
        raise _refused(
            f"{path} lies below no folder that the worker's operator allows for kernel sources"
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
    """Return the IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(address.packed[-4:])
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _refused(message: str) -> UserError:
    return UserError("source_not_allowed", message)
