set -e
tar -xf - --no-same-owner --unlink-first
[ $# = 0 ] || rm -f -- "$@"
find . -iname .git -prune -exec rm -rf {} +
git init -q --template= -b master
mkdir .git/info
echo '* -text -ident -filter -working-tree-encoding' >.git/info/attributes
git config core.checkStat minimal
git config core.trustctime false
git config core.fsync none
git config gc.auto 0
git config maintenance.auto false
git config core.logAllRefUpdates false
git config core.bigFileThreshold 1
git config core.compression 1
git add -A -f .
