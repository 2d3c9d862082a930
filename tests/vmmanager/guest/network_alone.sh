
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth1 up
{0} eth0 "{1}"
ip -o -4 addr show dev eth0; ip -o link show dev eth0; ip route
