"""Rules on paths in the kernel's tree: how such a file is built. Pure."""

import re

# Files that are no part of any kernel.
NO_CODE = re.compile(
    r"(Documentation|LICENSES|samples)/|tools/(?!(arch|build|include|lib|objtool|scripts)/)"
    r"|(.*/)?(MAINTAINERS|CREDITS|COPYING|README|TODO|\.[^/]*|[^/]*\.(rst|md))$"
)


# Files whose use no dependency file records: only make knows what follows from a change.
ONLY_MAKE = re.compile(
    r"(scripts|tools|usr)/|arch/\w+/(boot|realmode|purgatory|tools)/|include/generated/"
    r"|arch/\w+/include/generated/"
)


MAKEFILE = re.compile(r"(.*/)?(?:Makefile|Kbuild|Kconfig)[^/]*$")


# Folders that kbuild enters with a make of their own: their objects are no targets of the top make.
OWN_MAKES = re.compile(
    r"(scripts|tools|usr|arch/\w+/(boot|realmode/rm|purgatory|tools|entry/vdso))/"
)
