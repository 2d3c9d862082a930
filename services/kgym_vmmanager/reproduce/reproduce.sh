#!/bin/sh
# Boots the kernel as kGymSuite did, and runs the reproducer until Ctrl-C ends QEMU.
#   reproduce.sh [N [SEED]]    N: which reproducer, from 0 to {last}
#                              SEED: the variant of it in variant-SEED.cpio
# Needs qemu-system-x86_64 (it was {version}){and_zstd}.
set -eu
cd "$(dirname -- "$0")"
initrd=initrd-${{1:-0}}.cpio
if [ -n "${{2:-}}" ]; then
    cat "$initrd" "variant-$2.cpio" >variant-initrd
    initrd=variant-initrd
fi
{unpack}exec {command}
