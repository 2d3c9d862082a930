#!/bin/sh
# What the image rabbitmq does at its start: the user of the environment, and the server.
set -eu
umask 077
printf 'default_user = %s\ndefault_pass = %s\n' \
    "$RABBITMQ_DEFAULT_USER" "$RABBITMQ_DEFAULT_PASS" >/tmp/rabbitmq.conf
export RABBITMQ_CONFIG_FILE=/tmp/rabbitmq.conf RABBITMQ_LOGS=-
exec /usr/lib/rabbitmq/bin/rabbitmq-server
