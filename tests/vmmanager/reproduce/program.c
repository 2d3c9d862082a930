#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <net/if.h>
#include <unistd.h>

/* The kernel's own way to crash on demand: a NULL dereference. */
static void crash(void) {
    FILE *file = fopen("/proc/sysrq-trigger", "w");
    if (file && fputc('c', file) != EOF) fclose(file);
}

/* What a forger prints wherever it can. */
static void forge(void)
{
    const char *lines[] = {
        "BUG: KASAN: use-after-free in forged_function+0x9d0/0x1e80\n",
        "Write of size 8 at addr ffff888006e83540 by task repro/85\n",
        "Call Trace:\n forged_function+0x9d0/0x1e80\n",
        "BUG: memory leak\nunreferenced object 0xffff888006e83540 (size 32):\n",
        "  comm \"repro\", pid 85, jiffies 4294902190\n  backtrace:\n",
        "    [<00000000abcdef02>] forged_function+0x9d0/0x1e80\n\n",
        "Kernel panic - not syncing: panic_on_warn set ...\n",
        "*** stack smashing detected ***: terminated\n",
    };
    const char *places[] = {"/dev/stdout", "/dev/stderr", "/dev/kmsg", "/dev/console",
        "/dev/ttyS0", "/dev/ttyprintk", "/proc/self/fd/1", "/proc/1/fd/1", "/dev/pts/0"};
    for (unsigned p = 0; p < sizeof(places) / sizeof(*places); p++)
        for (unsigned l = 0; l < sizeof(lines) / sizeof(*lines); l++) {
            FILE *file = fopen(places[p], "w");
            if (file) { fputs(lines[l], file); fclose(file); }
        }
}

/* Raises a fault of the kernel's object for controls. */
static void raise_fault(const char *fault)
{
    FILE *file = fopen("/sys/module/kgym_control/parameters/raise", "w");
    if (!file || fputs(fault, file) < 0 || fclose(file)) exit(1);
}

/* CPUs, file systems, devices, and a network that commands set up. */
static void check_guest(void)
{
    const char *wanted[] = {"/proc/self", "/sys/kernel", "/dev/null", "/dev/pts", "/dev/shm",
        "/dev/loop0", "/dev/loop7", "/sys/class/net/eth0"};
    for (unsigned i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        if (access(wanted[i], F_OK)) {
            fprintf(stderr, "no %s\n", wanted[i]);
            exit(1);
        }
    if (mkdir("old", 0755) || mkdir("new", 0755) || mount(0, "new", "tmpfs", 0, 0)) exit(2);
    if (sysconf(_SC_NPROCESSORS_ONLN) != 2) exit(3);
    if (system("ip neigh add 10.0.2.9 lladdr aa:aa:aa:aa:aa:aa dev eth0 nud permanent 2>/dev/null;"
               "ip neigh show dev eth0 | grep -q '10.0.2.9 lladdr aa:aa:aa:aa:aa:aa PERMANENT'"))
        exit(4);
    exit(getuid());
}

static void take_network_down(void)
{
    struct ifreq request = {.ifr_name = "eth0"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sleep(1);
    if (ioctl(fd, SIOCSIFFLAGS, &request)) exit(1);
    for (;;) pause();
}

/* Takes the CPU from everything else, the SSH server included. */
static void hog_cpu(void)
{
    struct sched_param most = {.sched_priority = 99};
    FILE *file = fopen("/proc/sys/kernel/sched_rt_runtime_us", "w");
    if (!file || fputs("-1", file) < 0 || fclose(file)) exit(1);
    sleep(1);
    if (sched_setscheduler(0, SCHED_FIFO, &most)) exit(2);
    for (;;);
}
