"""One virtual machine from outside: QEMU, what confines it, how it ends."""
