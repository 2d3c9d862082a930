/*
 * Messages with IP options that are refused for another control message, by all kinds of UDP
 * socket: the right error, and nothing is left. Needs kmemleak=on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct sockaddr_in address = {
	.sin_family = AF_INET,
	.sin_port = 0x0900,
	.sin_addr.s_addr = 0x0100007f,
};
static char control[512];
static struct msghdr message;
static char text[4] = "text";
static struct iovec vector = { text, sizeof(text) };

static void begin(int named)
{
	memset(control, 0, sizeof(control));
	message = (struct msghdr){
		.msg_control = control,
		.msg_iov = &vector,
		.msg_iovlen = 1,
	};
	if (named) {
		message.msg_name = (void *)&address;
		message.msg_namelen = sizeof(address);
	}
}

static void put(int level, int type, const void *data, size_t size)
{
	struct cmsghdr *header = (void *)(control + message.msg_controllen);

	header->cmsg_level = level;
	header->cmsg_type = type;
	header->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(header), data, size);
	message.msg_controllen += CMSG_SPACE(size);
}

static void options(void)
{
	char nothing[40];

	memset(nothing, 1, sizeof(nothing));
	put(IPPROTO_IP, IP_RETOPTS, nothing, sizeof(nothing));
}

static void refused(const char *what, int fd, int flags, int error)
{
	int i;

	for (i = 0; i < 16; i++) {
		long result = sendmsg(fd, &message, flags);

		if (result != -1 || errno != error) {
			printf("WRONG %s: %ld, errno %d\n", what, result, errno);
			fflush(stdout);
			_exit(3);
		}
	}
}

static void send_all(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), connected = socket(AF_INET, SOCK_DGRAM, 0);
	int lite = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE);
	struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int bad = 300, mark = 1;

	ioctl(fd, SIOCSIFFLAGS, &loopback);
	if (fd < 0 || connected < 0 || connect(connected, (void *)&address, sizeof(address))) {
		perror("socket");
		_exit(1);
	}
	begin(1), options(), put(IPPROTO_IP, IP_TTL, &bad, 2), refused("short TTL", fd, 0, EINVAL);
	begin(1), options(), put(IPPROTO_IP, IP_TTL, &bad, 4), refused("great TTL", fd, 0, EINVAL);
	begin(1), options(), put(IPPROTO_IP, IP_TOS, &bad, 4), refused("great TOS", fd, 0, EINVAL);
	begin(1), put(IPPROTO_IP, IP_TOS, &mark, 4), options(), put(IPPROTO_IP, IP_TTL, &bad, 2);
	refused("options in second place", fd, 0, EINVAL);
	begin(1), options(), put(IPPROTO_IP, IP_TTL, &bad, 2), refused("corked", fd, MSG_MORE, EINVAL);
	begin(0), options(), put(IPPROTO_IP, IP_TTL, &bad, 2), refused("connected", connected, 0, EINVAL);
	if (lite >= 0)
		begin(1), options(), put(IPPROTO_IP, IP_TTL, &bad, 2), refused("UDP-Lite", lite, 0, EINVAL);
	if (setresuid(1000, 1000, 1000))
		_exit(1);
	begin(1), options(), put(SOL_SOCKET, SO_MARK, &mark, 4), refused("a mark", fd, 0, EPERM);
	_exit(0);
}

int main(void)
{
	static char report[65536];
	int kmemleak, status = 1, i;
	pid_t child;

	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	kmemleak = open("/sys/kernel/debug/kmemleak", O_RDWR);
	if (kmemleak < 0 || write(kmemleak, "clear", 5) != 5) {
		perror("kmemleak is off (kmemleak=on)");
		return 1;
	}
	child = fork();
	if (!child)
		send_all();
	waitpid(child, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	/* kmemleak reports nothing younger than five seconds. */
	sleep(7);
	for (i = 0; i < 2; i++)
		if (write(kmemleak, "scan", 4) != 4)
			return 1;
	if (read(kmemleak, report, sizeof(report) - 1) > 0 && strstr(report, "ip_options_get")) {
		puts("WRONG options leak");
		return 3;
	}
	return 0;
}
