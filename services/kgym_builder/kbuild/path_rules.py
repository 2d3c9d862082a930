"""What the path of a file in the kernel's tree says about how it is built. Pure."""

import re

# Paths of files that no kernel is made of.
NO_CODE = re.compile(
    r"(Documentation|LICENSES|samples)/|tools/(?!(arch|build|include|lib|objtool|scripts)/)"
    r"|(.*/)?(MAINTAINERS|CREDITS|COPYING|README|TODO|\.[^/]*|[^/]*\.(rst|md))$"
)


# Paths of what is compiled, or read, by ways that no dependency file tells of.
ONLY_MAKE = re.compile(
    r"(scripts|tools|usr)/|arch/\w+/(boot|realmode|purgatory|tools)/|include/generated/"
    r"|arch/\w+/include/generated/"
)


MAKEFILE = re.compile(r"(.*/)?(?:Makefile|Kbuild|Kconfig)[^/]*$")


# Folders that kbuild enters by a make of their own: their objects are no targets of the whole.
OWN_MAKES = re.compile(
    r"(scripts|tools|usr|arch/\w+/(boot|realmode/rm|purgatory|tools|entry/vdso))/"
)
