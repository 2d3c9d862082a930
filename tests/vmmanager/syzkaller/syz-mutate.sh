#!/bin/sh
# Stands in for syz-mutate: the first round of a seed makes it the first argument, the second round
# the second one.
first='#round 0\nfutex(0x%x, 0xfff)\n' second='#round 1\nfutex(0xfff, 0x%x)\n'
both='#round 0\nfutex(0x%x, 0xfff)\n#round 1\nfutex(0x%x, 0x%x)\n'
printf '#program\nfutex(0xfff, 0xfff)\n'
while read -r seed count mask; do
    end=$((seed + count))
    while [ "$seed" -lt $end ]; do
        printf '#variant %d %d\n' "$seed" "$mask"
        case $((mask & 3)) in
        1) printf "$first" "$seed" ;;
        2) printf "$second" "$seed" ;;
        3) printf "$both" "$seed" "$seed" "$seed" ;;
        esac
        seed=$((seed + 1))
    done
done
echo '#end'
