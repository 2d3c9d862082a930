here() { "${git[@]}" cat-file -e "$1"; case $? in 0) ;; 1) exit 3;; *) exit 1;; esac; }
git=("$@") id=$COMMIT
while here "$id"; do
    kind=$("$@" cat-file -t "$id") || exit 1
    is=$("$@" cat-file "$kind" "$id" | "$@" hash-object --literally -t "$kind" --stdin) || exit 1
    [ "$is" = "$id" ] || { echo "object $id has the hash $is" >&2; exit 1; }
    [ "$kind" = tag ] || break
    id=$("$@" cat-file tag "$id" | sed -n '1s/^object //p') || exit 1
done
[ "$kind" = commit ] || exit 4
tree=$("$@" cat-file commit "$id" | sed -n '1s/^tree //p') || exit 1
here "$tree"
"$@" rev-list --objects --no-object-names --missing=print "$tree" |
    awk -v most="$MOST" '/^[?]/ && ++n <= most { print substr($0, 2) }
        END { exit n > most ? 5 : 0 }'
