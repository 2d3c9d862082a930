"""Virtual machines from outside: the provider protocol, QEMU, and its sandbox."""
