/*
 * Messages with IP options that are sent arrive with them, corked or not, and nothing is left.
 * Needs kmemleak=on.
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
#include <unistd.h>

static struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f };
static char control[512], text[4] = "text";
static struct iovec vector = { text, sizeof(text) };

static void require(int holds, const char *what)
{
	if (!holds) {
		printf("WRONG %s (errno %d)\n", what, errno);
		exit(3);
	}
}

static void make_message(struct msghdr *message, int ttl)
{
	struct cmsghdr *header = (void *)control;

	memset(control, 0, sizeof(control));
	*message = (struct msghdr){
		.msg_name = &address,
		.msg_namelen = sizeof(address),
		.msg_control = control,
		.msg_controllen = CMSG_SPACE(8) + CMSG_SPACE(4),
		.msg_iov = &vector,
		.msg_iovlen = 1,
	};
	header->cmsg_level = IPPROTO_IP;
	header->cmsg_type = IP_RETOPTS;
	header->cmsg_len = CMSG_LEN(8);
	memset(CMSG_DATA(header), 1, 8);
	header = (void *)(control + CMSG_SPACE(8));
	header->cmsg_level = IPPROTO_IP;
	header->cmsg_type = IP_TTL;
	header->cmsg_len = CMSG_LEN(4);
	*(int *)CMSG_DATA(header) = ttl;
}

static int received_options(int fd)
{
	char place[512], data[16];
	struct iovec into = { data, sizeof(data) };
	struct msghdr message = { .msg_control = place, .msg_controllen = sizeof(place), .msg_iov = &into,
				  .msg_iovlen = 1 };
	struct cmsghdr *header;

	if (recvmsg(fd, &message, MSG_DONTWAIT) < 0)
		return -1;
	for (header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header))
		if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_RECVOPTS)
			return header->cmsg_len - CMSG_LEN(0);
	return 0;
}

int main(void)
{
	static char report[65536];
	int fd = socket(AF_INET, SOCK_DGRAM, 0), receiver = socket(AF_INET, SOCK_DGRAM, 0), on = 1, i;
	struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	socklen_t length = sizeof(address);
	struct msghdr message;
	int kmemleak;

	ioctl(fd, SIOCSIFFLAGS, &loopback);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	kmemleak = open("/sys/kernel/debug/kmemleak", O_RDWR);
	if (kmemleak < 0 || write(kmemleak, "clear", 5) != 5 ||
	    bind(receiver, (void *)&address, sizeof(address)) ||
	    getsockname(receiver, (void *)&address, &length) ||
	    setsockopt(receiver, IPPROTO_IP, IP_RECVOPTS, &on, sizeof(on))) {
		perror("sockets or kmemleak=on");
		return 1;
	}
	for (i = 0; i < 16; i++) {
		make_message(&message, 64);
		require(sendmsg(fd, &message, 0) == 4, "sending");
		require(received_options(receiver) == 8, "the options arrive");
		make_message(&message, 64);
		require(sendmsg(fd, &message, MSG_MORE) == 4, "corking");
		require(send(fd, text, 4, 0) == 4, "sending what was corked");
		require(received_options(receiver) == 8, "corked options arrive");
	}
	memset(control, 0, sizeof(control));
	close(fd);
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
