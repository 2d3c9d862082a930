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
echo "$commit" |
    git -c pack.compression=1 pack-objects -q --revs --window=0 .git/objects/pack/pack >/dev/null
unset GIT_ALTERNATE_OBJECT_DIRECTORIES
git -c core.logAllRefUpdates=false update-ref HEAD "$commit"
git read-tree -u --reset HEAD
find . -print0 | sort -z >/out/names
xargs -0 touch -hd 1980-01-01 </out/names
git update-index -q --refresh
xargs -0 touch -had 2038-01-01 </out/names
rm /out/names
find .git -exec touch -d 1980-01-02 {} +
