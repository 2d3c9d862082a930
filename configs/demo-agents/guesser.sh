# A scripted agent that is wrong: without feedback it gives nothing, with it what does not compile.
[ "$KENV_STATEFUL_EDIT" = true ] || exit 0
set -- kernel/*.c
echo '#error a broken guess' >>"$1"
/KBDr/run_kernel
