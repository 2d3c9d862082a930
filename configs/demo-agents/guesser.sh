# A scripted agent that is wrong: without feedback it gives nothing, with it what does not compile.
[ "$KENV_STATEFUL_EDIT" = true ] || exit 0
for file in kernel/fork.c kernel/*.c; do
    [ ! -f "$file" ] || break
done
echo '#error a broken guess' >>"$file"
/KBDr/run_kernel
