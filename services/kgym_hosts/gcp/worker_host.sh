#!/bin/sh
# The startup script of a pool's host. It keeps a worker running until the worker is drained; then the machine stops, and
# `kgym gcp scale` removes it. A stopped machine is visible to any loop, later too; a worker that has left is not.
# The output goes to the host's journal and serial port.
set -u
export HOME="${HOME:-/root}" KGYM_DATA="${KGYM_DATA:-/var/lib/kgym}"

get() { curl -sf --noproxy '*' --retry 5 --retry-connrefused --max-time 20 "$@"; }
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
about() { get -H 'Metadata-Flavor: Google' "$metadata/$1"; }
string() { tr -d '\n' | sed "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/"; }

# Print the secret from Secret Manager: the workers' token in the first line, then the scheduler's certificate unless a public
# authority issued it; nothing without a secret in the deployment. Secrets go through pipes: other users see a command's words.
read_secret() {
    secret=$(about attributes/kgym-secret) || return 0
    about service-accounts/default/token | string access_token | sed 's/^/Authorization: Bearer /' |
        get -H @- "${SECRET_MANAGER_EMULATOR_HOST:-https://secretmanager.googleapis.com}/v1/$secret/versions/latest:access" |
        string data | base64 -d
}

run() {
    secret=$(read_secret) || return 1
    KGYM_TOKEN=$(printf "%s\n" "$secret" | head -n 1)
    export KGYM_TOKEN
    mkdir -p "$KGYM_DATA"
    if printf "%s\n" "$secret" | grep '^-----BEGIN CERTIFICATE' >/dev/null; then
        { cat /etc/ssl/certs/ca-certificates.crt; printf "%s\n" "$secret" | tail -n +2; } >"$KGYM_DATA/trusted.pem"
        export SSL_CERT_FILE="$KGYM_DATA/trusted.pem"
    fi
    $kgym worker --host-name "$(about name)" --server "$(about attributes/kgym-server)" \
        --storage "$(about attributes/kgym-storage)" --kinds "$(about attributes/kgym-kinds)" \
        --slots "$(about attributes/kgym-slots)"
}

until sh -ec "$(about attributes/kgym-setup)"; do sleep 10; done
kgym=$(about attributes/kgym-program) # with its words
$kgym --version | get -X PUT --data-binary @- -H 'Metadata-Flavor: Google' "$metadata/guest-attributes/kgym/version"
# A worker that was drained, or was told to end, ends with 0.
until run; do sleep 5; done
# Where another answers in place of the machine's own metadata server, this is no machine of its own.
[ -n "${GCE_METADATA_HOST:-}" ] || poweroff
