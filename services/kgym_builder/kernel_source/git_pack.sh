"$@" -c core.quotePath=false ls-tree -r -t -l --full-tree "$COMMIT" |
    awk -v longest="$LONGEST" -v most="$MOST" -v bytes="$BYTES" -F '\t' '
    {
        if (length($0) > longest) exit 7
        if (++n > most) exit 5
        split($1, words, " +")
        if ((sum += words[4]) > bytes) exit 6
        path = substr($0, length($1) + 2)
        gsub(/^"|"$/, "", path)
        within = "/" tolower(path) "/"
        if (path in seen || within ~ /\/\// || within ~ /\/([.]git|[.][.]?)\//) {
            print path
            exit 8
        }
        seen[path]
    }' || exit
"$@" archive --worktree-attributes --prefix=linux/ -o "$OUT" "$COMMIT"
