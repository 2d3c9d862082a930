#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /tmp /dev
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
{script}
echo "the script ended: $?"
sleep 10000
