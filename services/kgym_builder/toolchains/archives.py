"""Where Debian's suites are downloaded from: the host's own archive, or the operator's choice."""

import re
from dataclasses import dataclass
from typing import Self

from kgym.api.steps import compilers
from kgym.errors import InfrastructureError, UserError
from kgym.host import proc

# The environment variable of the setting.
SETTING = "KGYM_ARCHIVES"
NONE = "none"
_ANY = "*"
_SECONDS = 60.0
_ADDRESS = re.compile(
    r"(?P<options>\[[\w=/., +-]{1,500}\] +)?(?P<url>(https?|copy)://[\w.:/~%@+-]{1,500})"
)


@dataclass(frozen=True, slots=True)
class Archives:
    """Addresses by suite, `*` for all others."""

    named: tuple[tuple[str, str], ...] = ()
    off: bool = False
    """Whether downloads are forbidden."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Read the setting: `buster=http://…;*=http://…`, or `none`.

        Options of sources.list(5) may stand before an address, as `[trusted=yes] copy:///folder`.
        Raises UserError `bad_option`.
        """
        if (text or "").strip() == NONE:
            return cls(off=True)
        entries = []
        for part in filter(None, map(str.strip, (text or "").split(";"))):
            suite, _, address = (word.strip() for word in part.partition("="))
            known = compilers.table().suites
            if suite != _ANY and suite not in known:
                names = ", ".join(known)
                raise UserError(
                    "bad_option", f"{SETTING}: {suite[:100]!r} is not a known suite: {names}, or *"
                )
            if not _ADDRESS.fullmatch(address):
                raise UserError(
                    "bad_option",
                    f"{SETTING}: {address[:200]!r} is not an archive's address; write e.g."
                    f" {suite}=http://archive.example/debian",
                )
            entries.append((suite, address))
        return cls(tuple(entries))

    async def suites(self) -> set[str]:
        """Return the suites that can be downloaded here.

        Suites without an address come from the host's archive if it is Debian's. Archived suites
        are in none of the regular archives, so they need an address.
        """
        if self.off:
            return set()
        suites = compilers.table().suites
        offered = {suite for suite in suites if self._named(suite) is not None}
        others = {suite for suite, about in suites.items() if not about.archived} - offered
        if others and await _of_host() is not None:
            offered |= others
        return offered

    async def source(self, suite: str) -> str:
        """Return the suite's source for mmdebstrap: an address, or a sources.list(5) line.

        Raises InfrastructureError `no_archive`.
        """
        named = self._named(suite)
        if named is None:
            address = await _of_host()
            if address is None:
                raise InfrastructureError(
                    "no_archive",
                    f"the toolchain image of {suite} cannot be made: this host's apt has no archive"
                    f" of Debian's suites (or `apt-get update` has not reached it); {SETTING}={suite}=http://…"
                    " on the worker names one",
                )
            return address
        words = _ADDRESS.fullmatch(named)
        assert words is not None
        if words["options"] is None:
            return words["url"]
        return f"deb {words['options']}{words['url']} {suite} main"

    def _named(self, suite: str) -> str | None:
        named = dict(self.named)
        return named.get(suite) or named.get(_ANY)


async def _of_host() -> str | None:
    """Return the address of Debian's archive from the host's apt sources.

    None if there is none, or if apt has never fetched its lists.
    """
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"]
    targets = await proc.run([*argv, "Created-By: Packages"], timeout=_SECONDS, check=False)
    rows = [words for line in targets.text.splitlines() if len(words := line.split()) == 3]
    # Debian's archives are recognised by their suites: plain code names, with a component `main`.
    names = set(compilers.table().suites)
    for address, release, component in rows:
        if release in names and component == "main" and _ADDRESS.fullmatch(address):
            return address
    return None
