
ip link add eth0 type veth peer name eth1
ip addr add 10.128.0.1/24 dev eth1
ip link set eth1 up
busybox udhcpd -f {folder}/udhcpd.conf & server=$!
timeout 20 {script} eth0 dhcp
kill $server
ip -o -4 addr show dev eth0; ip -o link show dev eth0; ip route
