set -e
tar -xf - --no-same-owner --unlink-first
[ $# = 0 ] || rm -f -- "$@"
[ ! -s /out/paths ] ||
    git --literal-pathspecs add -A -f --pathspec-from-file=/out/paths --pathspec-file-nul
git commit -q --allow-empty --no-verify -m 'The kernel'
commit=$(git rev-parse HEAD)
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$PWD/.git/objects"
git init -q --template= -b master /out/tree
cp -r .git/info /out/tree/.git
cd /out/tree
git config core.checkStat minimal
git config core.trustctime false
git config kgym.base "$commit"
echo "$commit" | git pack-objects -q --revs --window=0 .git/objects/pack/pack >/dev/null
unset GIT_ALTERNATE_OBJECT_DIRECTORIES
git -c core.logAllRefUpdates=false update-ref HEAD "$commit"
git read-tree -u --reset HEAD
find . -print0 | sort -z | xargs -0 touch -hd 1980-01-01
git update-index -q --refresh
find .git -exec touch -d 1980-01-02 {} +
