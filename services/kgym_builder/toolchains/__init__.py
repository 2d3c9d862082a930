"""Toolchains: the host's compilers, and those of Debian's suites in images, a sandbox's root."""
