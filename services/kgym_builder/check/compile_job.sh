here=${0%/*}
count() {
    objdump -t "$2" | awk -F '\t' '
        NR == FNR { wanted[$1]; next }
        substr($1, 24, 1) == "F" {
            n = split($2, words, " ")
            base = words[n]
            sub(/\..*/, "", base)
            place = substr($1, 26) " " substr($1, 1, 16)
            if (base in wanted && !seen[place]++) print place, words[1], base
        }' "$here/symbols" - |
    while read -r section start size base; do
        range="--start-address=0x$start --stop-address=$((0x$start + 0x$size))"
        lines=$(objdump -d --no-show-raw-insn -j "$section" $range "$2")
        echo "$1 $2 $base $(printf %s "$lines" | grep -c '^ *[0-9a-f]*:')"
    done
}

work=$here/$1
all() {
    [ -s "$here/symbols" ] || return
    while read -r object; do count "$1" "$object"; done <$work.objects
}
read -r seconds bytes depfile <$work.limits
all before >$work.counts
{ timeout -k 5 "$seconds" sh $work.run </dev/null 2>&1; echo $? >$work.status; } |
    { head -c "$bytes" >$work.out; cat >/dev/null; }
all after >>$work.counts
[ -z "$depfile" ] || cp -- "$depfile" $work.d
