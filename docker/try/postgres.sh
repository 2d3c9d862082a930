#!/bin/sh
# What the image postgres does at its first start, then the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-host scram-sha-256 >/dev/null
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses= -k /tmp" start >/dev/null
    createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w stop >/dev/null
fi
exec postgres -k /tmp -c 'listen_addresses=*'
