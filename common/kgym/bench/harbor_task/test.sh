#!/bin/sh
cd /linux && git add -A && git diff --cached "$(git config kgym.base)" >/tmp/patch || exit 1
kgym run-kernel --bug /tests/bundle --patch /tmp/patch --instances {instances} --json \
    >/logs/verifier/run_kernel.json
case $? in
0) echo 1 >/logs/verifier/reward.txt ;;
1 | 2) echo 0 >/logs/verifier/reward.txt ;;
*) exit 1 ;;
esac
