#!/bin/sh
# Tries docker-compose.yml where no image can be pulled: makes the images that it names from
# Debian's packages, starts everything, and lets it build the small make tree of the tests.
#
#   docker/try.sh [BUG]        then also `kgym bug reproduce BUG`
#
# Needs root, debootstrap, and a Docker engine with the Compose plugin (version 2); KGYM is the
# command to try it with. SUITE_MIRROR names another mirror of Debian. `docker/try.sh down`
# removes containers and volumes again.
set -eu
cd "$(dirname -- "$0")/.."
kgym=${KGYM:-.venv/bin/kgym}

export POSTGRES_PASSWORD=try1 RABBITMQ_PASSWORD=try2
export KGYM_SOURCES=/data/artifacts/small.tar # what is built below
if [ "${1-}" = down ]; then
    exec docker compose down --volumes --timeout 10
fi

have() { docker image inspect "$1" >/dev/null 2>&1; }

if ! have debian:bookworm-slim; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase bookworm "$root" ${SUITE_MIRROR:+"$SUITE_MIRROR"}
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import - debian:bookworm-slim
fi
have postgres:15 || docker build -t postgres:15 -f docker/try/postgres.Dockerfile docker/try
have rabbitmq:3 || docker build -t rabbitmq:3 -f docker/try/rabbitmq.Dockerfile docker/try

docker compose build
docker compose up --detach --wait --wait-timeout 300 scheduler builder vmmanager
KGYM_TOKEN=$(docker compose exec -T scheduler cat /tokens/admin/token)
KGYM_SERVER=http://${KGYM_PUBLISH:-127.0.0.1:8420}
export KGYM_TOKEN KGYM_SERVER

# The small make tree, where the builder can read it: among the artifacts.
tar -c -C tests fakelinux | docker compose exec -T builder sh -c 'cat >/data/artifacts/small.tar'
sum=$(docker compose exec -T builder sha256sum /data/artifacts/small.tar | cut -d' ' -f1)
"$kgym" job submit - --wait <<JSON
{"steps": [{"kind": "build", "source": {"kind": "tarball",
  "url": "/data/artifacts/small.tar", "sha256": "$sum"},
  "config": {"base": "allnoconfig", "fragments": ["CONFIG_BASE=y\n"]}}]}
JSON
[ $# -eq 0 ] || "$kgym" bug reproduce "$1"
