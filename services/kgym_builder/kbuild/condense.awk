{
    while ((got = (getline line < $0)) > 0) take(line)
    if (got < 0) { failed = 1; exit }
    close($0)
}
END { tell(); exit failed }
function take(line) {
    if (line ~ /^  [^ $]/) {
        split(line, words, " ")
        if (words[1] in number) { again = again " " number[words[1]]; if (++many == 500) tell() }
        else { number[words[1]] = last++; print line }
    }
    else if (line ~ /^((saved)?cmd|source)_/) { tell(); print line }
}
function tell() { if (many) print "=" again; again = ""; many = 0 }
