/*
 * A helper rejects keys with errors of its own, which reading them must return. The program
 * itself is the helper, by a link that is removed again.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESS_KEYRING -2
#define KEYCTL_REVOKE 3
#define KEYCTL_READ 11
#define KEYCTL_ASSUME_AUTHORITY 16
#define KEYCTL_REJECT 19
#define HELPER "/sbin/request-key"

/* The kernel calls: request-key create KEY UID GID THREAD PROCESS SESSION; argv[0] is HELPER. */
static int reject(char **argv)
{
	int32_t key = atoi(argv[2]);
	int error = EACCES;
	FILE *wanted = fopen("/tmp/kgym-reject", "r");

	if (wanted) {
		if (fscanf(wanted, "%d", &error) != 1)
			error = EACCES;
		fclose(wanted);
	}
	syscall(SYS_keyctl, KEYCTL_ASSUME_AUTHORITY, key);
	return syscall(SYS_keyctl, KEYCTL_REJECT, key, 60, error, 0) ? 1 : 0;
}

static int read_rejected(int error)
{
	int32_t serials[64];
	char payload[64], name[32];
	FILE *wanted = fopen("/tmp/kgym-reject", "w");
	long bytes, result;

	if (!wanted)
		return 1;
	fprintf(wanted, "%d", error);
	fclose(wanted);
	snprintf(name, sizeof(name), "rejected:%d", error);
	syscall(SYS_request_key, "user", name, "info", PROCESS_KEYRING);
	bytes = syscall(SYS_keyctl, KEYCTL_READ, PROCESS_KEYRING, serials, sizeof(serials));
	if (bytes < 4) {
		fprintf(stderr, "no key was rejected: %s\n", strerror(errno));
		return 1;
	}
	result = syscall(SYS_keyctl, KEYCTL_READ, serials[0], payload, sizeof(payload));
	if (result < 0)
		result = -errno;
	if (result != -error) {
		printf("WRONG a key that was rejected with %d is read: %ld\n", error, result);
		return 3;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const int errors[] = { EKEYREJECTED, EACCES, EKEYREVOKED };
	char self[4096] = { 0 };
	int i, status = 0;

	if (argc > 6 && !strcmp(argv[1], "create"))
		return reject(argv);
	mkdir("/sbin", 0755);
	mkdir("/tmp", 0777);
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0 ||
	    (unlink(HELPER), symlink(self, HELPER))) {
		perror(HELPER);
		return 1;
	}
	for (i = 0; i < 3 && !status; i++) {
		pid_t child = fork();

		if (!child)
			_exit(read_rejected(errors[i]));
		if (child < 0)
			status = 1;
		else {
			waitpid(child, &status, 0);
			status = status & 0x7f ? 1 : status >> 8;
		}
	}
	unlink(HELPER);
	unlink("/tmp/kgym-reject");
	return status;
}
