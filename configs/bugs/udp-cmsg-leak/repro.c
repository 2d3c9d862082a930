/*
 * A UDP message with two control messages: IP options, for which the kernel allocates memory, and
 * a time to live that it refuses. What was allocated for the first is lost. The leak is silent:
 * kmemleak has to be asked to scan; the kernel then tells of it on the console (kmemleak.verbose).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#define LEAKS 16
/* kmemleak reports nothing younger than five seconds. */
#define MIN_AGE 7

static void put(struct msghdr *message, struct cmsghdr *header, int type, size_t size)
{
	header->cmsg_level = IPPROTO_IP;
	header->cmsg_type = type;
	header->cmsg_len = CMSG_LEN(size);
	memset(CMSG_DATA(header), 1, size); /* IPOPT_NOOP; as a time to live, short of bytes */
	message->msg_controllen += CMSG_SPACE(size);
}

static int send_refused(int fd)
{
	static char control[128];
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(9),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct msghdr message = {
		.msg_name = &address,
		.msg_namelen = sizeof(address),
		.msg_control = control,
	};

	put(&message, (struct cmsghdr *)control, IP_RETOPTS, 40);
	put(&message, (struct cmsghdr *)(control + CMSG_SPACE(40)), IP_TTL, 2);
	return sendmsg(fd, &message, 0);
}

static int scan(int kmemleak)
{
	return write(kmemleak, "scan", 4) == 4 ? 0 : -1;
}

int main(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	int kmemleak, i;

	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL); /* may be mounted already */
	kmemleak = open("/sys/kernel/debug/kmemleak", O_RDWR);
	if (fd < 0 || kmemleak < 0) {
		perror("socket or kmemleak");
		return 1;
	}
	for (i = 0; i < LEAKS; i++)
		if (send_refused(fd) != -1) {
			fputs("the message was not refused\n", stderr);
			return 1;
		}
	sleep(MIN_AGE);
	/* Twice: the first scan may find the addresses where the calls above left them. */
	if (scan(kmemleak) || scan(kmemleak)) {
		perror("kmemleak is off (kmemleak=on)");
		return 1;
	}
	return 0;
}
