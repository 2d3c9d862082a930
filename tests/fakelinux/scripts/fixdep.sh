# Writes DIR/.NAME.cmd as kbuild does: the command, escaped for make, and what the compiler read.
depfile=$1 target=$2 command=$3
set -- $(sed -e 's/^[^:]*://' -e 's/\\$//' "$depfile")
{
    printf 'savedcmd_%s := ' "$target"
    printf '%s\n' "$command" | sed -e 's/\$/$$/g' -e 's/#/$(pound)/g'
    printf '\nsource_%s := %s\n\ndeps_%s := \\\n' "$target" "$1" "$target"
    shift
    for file; do
        printf '  %s \\\n' "$file"
        for symbol in $(grep -o 'CONFIG_[A-Z_]*' "$file" | sed 's/CONFIG_//' | sort -u); do
            printf '    $(wildcard include/config/%s) \\\n' "$symbol"
        done
    done
    printf '\n%s: $(deps_%s)\n\n$(deps_%s):\n' "$target" "$target" "$target"
} >"$(dirname "$target")/.$(basename "$target").cmd"
rm -f "$depfile"
