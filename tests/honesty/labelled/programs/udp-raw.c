/* A raw socket's message with IP options that is refused for its time to live. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
	static char control[256], text[4] = "text";
	struct iovec vector = { text, sizeof(text) };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f };
	struct msghdr message = {
		.msg_name = &address,
		.msg_namelen = sizeof(address),
		.msg_control = control,
		.msg_controllen = CMSG_SPACE(40) + CMSG_SPACE(2),
		.msg_iov = &vector,
		.msg_iovlen = 1,
	};
	struct cmsghdr *header = (void *)control;
	int fd = socket(AF_INET, SOCK_RAW, 200), i;

	if (fd < 0) {
		perror("raw socket");
		return 1;
	}
	header->cmsg_level = IPPROTO_IP;
	header->cmsg_type = IP_RETOPTS;
	header->cmsg_len = CMSG_LEN(40);
	memset(CMSG_DATA(header), 1, 40);
	header = (void *)(control + CMSG_SPACE(40));
	header->cmsg_level = IPPROTO_IP;
	header->cmsg_type = IP_TTL;
	header->cmsg_len = CMSG_LEN(2);
	for (i = 0; i < 32; i++)
		if (sendmsg(fd, &message, 0) != -1 || errno != EINVAL) {
			printf("WRONG errno %d\n", errno);
			return 3;
		}
	return 0;
}
