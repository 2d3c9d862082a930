# Keeps what it is asked of the symbols in Kconfig; the others are dropped, as kconfig does.
target=$1 all=$2
case $target in
olddefconfig) asked=.config ;;
*) asked=${all:-/dev/null} ;;
esac
# A macro runs a program, as in scripts/kconfig/preprocess.c.
eval "$(sed -n 's/^.*$(shell,\(.*\))$/\1/p' Kconfig)"
new=$(mktemp)
for symbol in $(grep -v '[$]' Kconfig); do
    line=$(grep -E "^CONFIG_$symbol=|^# CONFIG_$symbol is not set" "$asked" | tail -n 1)
    case $target in
    defconfig) default="CONFIG_$symbol=y" ;;
    *) default="# CONFIG_$symbol is not set" ;;
    esac
    echo "${line:-$default}" >> "$new"
done
# Nobody is asked for it: others select it, as in kernel/trace/Kconfig.
! grep -q '^CONFIG_ENABLE_DEFAULT_TRACERS=y' "$new" || echo CONFIG_TRACING=y >> "$new"
mv "$new" .config
