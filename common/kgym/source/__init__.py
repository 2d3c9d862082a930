"""Kernel source code: patches on it, what is instrumented in it, what compilers say of it. Pure."""
