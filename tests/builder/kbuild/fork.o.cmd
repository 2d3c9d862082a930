
cmd_kernel/fork.o := gcc -Wp,-MMD,kernel/.fork.o.d -DKBUILD_MODNAME='"fork"' -D'COST=$$(pound)' -c -o kernel/fork.o kernel/fork.c   ; ./tools/objtool/objtool --uaccess   kernel/fork.o

source_kernel/fork.o := kernel/fork.c

deps_kernel/fork.o := \
    $(wildcard include/config/MMU) \
  include/linux/kconfig.h \
    $(wildcard include/config/BOOGER) \
  /usr/lib/gcc/x86_64-linux-gnu/12/include/stdarg.h \
  kernel/../mm/slab.h \
  /kgym/linux/include/linux/slab.h \

kernel/fork.o: $(deps_kernel/fork.o)

$(deps_kernel/fork.o):

kernel/fork.o: $(wildcard ./tools/objtool/objtool)
savedcmd_kernel/built-in.a := rm -f kernel/built-in.a; printf "kernel/%s " fork.o | xargs ar cDPrST kernel/built-in.a
