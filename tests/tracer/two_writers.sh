
echo 16 > buffer_size_kb
write='i=0
while [ $i -lt 600 ]; do i=$((i+1)); echo "kgym:fs/$0.c:f$((i%7)) $i" > trace_marker; done'
taskset 1 sh -c "$write" a &
taskset 2 sh -c "$write" b &
wait
echo 1 > /proc/sys/kernel/printk # else the kernel's own words may stand within those lines
echo "trace: begin"; cat trace; echo "trace: end"
echo 7 > /proc/sys/kernel/printk
/program
