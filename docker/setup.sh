#!/bin/sh
# Before the first start: the tables, and the tokens of the workers, the agent, the monitor and the first user.
set -eu
umask 077

# token NAME SCOPE: make it, unless its file is there. The file appears whole or not at all.
token() {
    [ ! -s "/tokens/$1/token" ] || return 0
    kgym token revoke "$1" 2>/dev/null || true
    kgym token create "$1" --scope "$2" >"/tokens/$1/new"
    mv "/tokens/$1/new" "/tokens/$1/token"
}

kgym db upgrade
token workers worker
token admin admin
token agent submit
token monitor read
