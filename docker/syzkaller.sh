#!/bin/sh
# Builds what reproducers of the kind `syz` need: syz-execprog and syz-executor, each commit once.
#
#   docker/syzkaller.sh DIR [COMMIT...]
#
# leaves DIR/COMMIT/syz-execprog and DIR/COMMIT/syz-executor; without a COMMIT the pinned one, which
# also becomes the default for programs that ask for none. DIR is what KGYM_SYZKALLER names.
# Needs a Docker engine. REPOSITORY names another repository to take the commit from, GO_IMAGE
# another image with Go: an old commit may need an old one.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
pinned=696ea0d2f4fdaa17db929e152edba19bf7666d84

[ $# -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(CDPATH='' cd -- "$1" && pwd)
shift

# build COMMIT: a commit's folder is there whole, or not at all.
build() {
    case $1 in
    *[!0-9a-f]*) false ;;
    *) [ ${#1} -eq 40 ] ;;
    esac || { echo "syzkaller.sh: $1 is no full commit id" >&2; exit 2; }
    [ ! -d "$folder/$1" ] || return 0
    part=$(mktemp -d "$folder/.part-XXXXXX")
    trap 'rm -rf "$part"' EXIT
    image=kgym-syzkaller:$1
    docker build --tag "$image" --build-arg "COMMIT=$1" \
        ${REPOSITORY:+--build-arg "REPOSITORY=$REPOSITORY"} \
        ${GO_IMAGE:+--build-arg "GO_IMAGE=$GO_IMAGE"} \
        - <"$here/syzkaller.Dockerfile" >&2
    container=$(docker create "$image" nothing)
    for program in syz-execprog syz-executor; do
        docker cp "$container:/$program" "$part/$program" >&2
    done
    docker rm "$container" >/dev/null
    docker rmi "$image" >/dev/null
    chmod 755 "$part"
    mv "$part" "$folder/$1"
}

if [ $# -eq 0 ]; then
    build "$pinned"
    ln -sfn "$pinned/syz-execprog" "$pinned/syz-executor" "$folder"
fi
for commit in "$@"; do
    build "$commit"
done
