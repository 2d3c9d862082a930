# Does only what make would do after a change to some objects of vmlinux: runs the commands that
# kbuild saved for these objects and for the link. It runs in the tree, with the environment that
# the top Makefile gives to its own sub-makes.
#
# OBJECTS    what to compile
# LIBRARIES  archives whose index of symbols may have changed
# AFTER      what has to be made before the link, if the link takes vmlinux.o

MAKEFLAGS += --no-builtin-rules --no-builtin-variables --no-print-directory
.DEFAULT_GOAL := all
# Shell options as in kbuild (scripts/Kbuild.include): in `gcc …; objtool …` both have to succeed,
# or the old version of an object that did not compile would be linked.
.SHELLFLAGS := -ec
.DELETE_ON_ERROR:
pound := \#
saved = $(or $(savedcmd_$1),$(cmd_$1))

# Since Linux 6.15, the link may write another file, from which vmlinux is copied.
linked := $(if $(wildcard .vmlinux.unstripped.cmd),vmlinux.unstripped,vmlinux)
copied := $(filter-out $(linked),vmlinux)

upwards = $(if $(filter-out .,$1),$1 $(call upwards,$(patsubst %/,%,$(dir $1))))
noted = $(wildcard $(dir $1).$(notdir $1).cmd)

# The thin archives through which the objects reach the link. They record the objects' sizes, which
# the linker of binutils 2.35 trusts: it did not recognise an object that a patch had made longer.
ways := $(sort $(foreach made,$(OBJECTS),$(call upwards,$(patsubst %/,%,$(dir $(made))))))
ARCHIVES := $(foreach one,$(ways:=/built-in.a) built-in.a vmlinux.a,$(if $(call noted,$(one)),$(one)))

# The dependencies in these files play no role: what has to be made is known.
include $(foreach made,$(OBJECTS) $(LIBRARIES) $(linked) $(copied),$(dir $(made)).$(notdir $(made)).cmd)
include $(foreach made,$(ARCHIVES),$(call noted,$(made)))
-include .vmlinux.o.cmd .vmlinux.symvers.cmd ..vmlinux.export.o.cmd

# With CONFIG_MODULES, a table of the kernel's exports is linked, too, and modpost writes it last.
# Mostly it is unchanged. If it has changed, or an exported function is gone, the link is repeated.
exports := $(wildcard .vmlinux.export.o)
early := $(if $(AFTER),,$(exports))
link = $(subst scripts/link-vmlinux.sh,./.kgym-link,$(call saved,$(linked)))$(if $(copied),; $(call saved,$(copied)))
image = $(MAKE) -f scripts/Makefile.build obj=arch/x86/boot arch/x86/boot/bzImage

# Cases that the rehearsal, which changes nothing, would not detect.
ifeq ($(findstring scripts/link-vmlinux.sh,$(call saved,$(linked))),)
$(error kbuild has noted no link by scripts/link-vmlinux.sh)
endif
ifneq ($(wildcard .tmp_initcalls.lds),)
$(error the link goes by a list of initcalls (LTO) that a patch may change)
endif
ifneq ($(and $(exports),$(if $(call saved,$(exports)),,none)),)
$(error kbuild has noted no command for $(exports))
endif

.PHONY: all boot check link vmlinux.o vmlinux.symvers $(OBJECTS) $(LIBRARIES) $(ARCHIVES)
all: boot check
ifneq ($(early),)
	+@if [ -e .kgym-unlinked ] || ! cmp -s .kgym-export.c .vmlinux.export.c; then \
		$(call saved,$(exports)); $(link); $(image); fi
endif
check: vmlinux.symvers

# Up to Linux 5.16, kbuild's rules run commands after the compiler that it does not save, above all
# objtool. The makefile of the folder that lists the object is asked for them.
apart := $(shell grep -sF '$$(call cmd,objtool)' scripts/Makefile.build)
steps = objtool $(if $(filter %.S,$(call saved,$@)),modversions_S,modversions_c record_mcount)
commands = $(foreach step,$(steps),$(if $(strip $(cmd_$(step))), && $(cmd_$(step))))
listed = $(filter $@,$(real-obj-y) $(lib-y) $(extra-y) $(targets))
define asked
for folder in $(call upwards,$(patsubst %/,%,$(dir $@))); do
	[ -e $$folder/Makefile ] || [ -e $$folder/Kbuild ] || continue;
	$(MAKE) -s -f scripts/Makefile.build obj=$$folder 'steps=$(steps)' 'listed=$(value listed)'
		'commands=$(value commands)' --eval '.PHONY: $@'
		--eval '$@: ; $$(if $$(listed),$$(info :$$(commands)))' $@;
done
endef

$(OBJECTS):
	@echo "  CC      $@"
ifeq ($(apart),)
	@rm -f $@
	@$(call saved,$@)
else
	+@then=`$(strip $(asked))`; [ -n "$$then" ] || { touch .kgym-only-make; exit 1; }; \
		rm -f $@; $(call saved,$@); eval "$$then"
endif

$(LIBRARIES): $(OBJECTS)
	@$(call saved,$@)

# The members of an archive are those of its subfolders; the last archives have the whole tree.
within = $(filter-out $1,$(if $(filter vmlinux.a,$1),$(ARCHIVES),\
	$(if $(filter built-in.a,$1),$(filter-out vmlinux.a,$(ARCHIVES)),$(filter $(dir $1)%,$(ARCHIVES)))))
$(foreach one,$(ARCHIVES),$(eval $(one): $(call within,$(one))))
$(ARCHIVES): $(OBJECTS) $(LIBRARIES)
	@$(call saved,$@)

# Unless the link takes vmlinux.o, only modpost's checks need it. They run at low priority, beside
# the link's programs, which use one core each. They need no debug information (measured: 41 MB are
# written instead of 303).
ifeq ($(AFTER),)
checked = $(subst -r -o $@,-r --strip-debug -o $@,$(call saved,$@))
vmlinux.o vmlinux.symvers: private SHELL := nice
vmlinux.o vmlinux.symvers: private .SHELLFLAGS := -n 19 sh $(.SHELLFLAGS)
endif
vmlinux.o: $(OBJECTS) $(ARCHIVES) $(LIBRARIES)
	@$(or $(checked),$(call saved,$@))

vmlinux.symvers: vmlinux.o
	@$(if $(exports),cp .vmlinux.export.c .kgym-export.c)
	@$(call saved,$@)

# The script links three times: without the symbol table, with one of the right size, and with the
# right one. The unpatched kernel's table mostly has the right size, so the first link can be left
# out; if the size is wrong, the script itself notices and links once more.
guess := $(lastword $(sort $(wildcard .tmp_vmlinux.kallsyms?.o)))
link: $(OBJECTS) $(ARCHIVES) $(LIBRARIES) $(AFTER)
	@rm -f .kgym-unlinked
	@cp $(or $(guess),/dev/null) .kgym-kallsyms.o
	@sed 's/^\tkallsyms_step 1$$/\tkallsymso=.kgym-kallsyms.o/' scripts/link-vmlinux.sh >.kgym-link
	@chmod +x .kgym-link
ifeq ($(early),)
	@$(if $(exports),$(call saved,$(exports)))
	+@$(link)
else
	+@{ $(link); } >.kgym-linked 2>&1 & wait $$! || touch .kgym-unlinked
	@[ -e .kgym-unlinked ] || cat .kgym-linked
endif

boot: link
	+@[ -e .kgym-unlinked ] || $(image)
