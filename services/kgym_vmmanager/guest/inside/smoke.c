/*
 * Tries what programs need of a kernel. Each trial is a process of its own with a time limit.
 *
 * stdout, one line each:
 *     ok NAME
 *     skip NAME WHY     the kernel says that it was built without it
 *     fail NAME WHY
 *     done
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 30, SKIP = 2, SIZE = 256 << 10, DEPTH = 6, MOST_FILES = 20000 };

static char why[200];

static int failed(const char *what)
{
	snprintf(why, sizeof(why), "%s: %s", what, strerror(errno));
	return 1;
}

static int skipped(const char *what)
{
	switch (errno) {
	case ENOSYS: case ENODEV: case EAFNOSUPPORT: case EPROTONOSUPPORT: case EOPNOTSUPP:
		failed(what);
		return SKIP;
	}
	return failed(what);
}

static int wrong(const char *what)
{
	snprintf(why, sizeof(why), "%s", what);
	return 1;
}

static int try_mount(void)
{
	struct stat below, above;

	if (mkdir("/tmp/smoke-mount", 0755) < 0 && errno != EEXIST)
		return failed("mkdir");
	if (stat("/tmp/smoke-mount", &below) < 0)
		return failed("stat");
	if (mount("smoke", "/tmp/smoke-mount", "tmpfs", 0, "size=1m") < 0)
		return skipped("mount tmpfs");
	if (stat("/tmp/smoke-mount", &above) < 0 || below.st_dev == above.st_dev)
		return wrong("the mounted file system is not there");
	if (mkdir("/tmp/smoke-mount/folder", 0755) < 0)
		return failed("mkdir on tmpfs");
	return umount("/tmp/smoke-mount") < 0 ? failed("umount") : 0;
}

static int try_fork(void)
{
	int i, status;
	pid_t pid;

	for (i = 0; i < 20; i++) {
		if ((pid = fork()) < 0)
			return failed("fork");
		if (pid == 0)
			_exit(i);
		if (waitpid(pid, &status, 0) != pid)
			return failed("waitpid");
		if (!WIFEXITED(status) || WEXITSTATUS(status) != i)
			return wrong("a child's exit status is not its own");
	}
	return 0;
}

static int try_exec(void)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return failed("fork");
	if (pid == 0) {
		execl("/bin/true", "true", NULL);
		_exit(9);
	}
	if (waitpid(pid, &status, 0) != pid)
		return failed("waitpid");
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : wrong("`true` is not true");
}

static int try_files(void)
{
	static char out[SIZE], in[SIZE];
	int fd, i;

	for (i = 0; i < SIZE; i++)
		out[i] = i * 31 + (i >> 8);
	fd = open("/tmp/smoke-file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		return failed("open");
	if (write(fd, out, SIZE) != SIZE || pread(fd, in, SIZE, 0) != SIZE)
		return failed("write or read");
	if (memcmp(out, in, SIZE))
		return wrong("a file holds something else than was written");
	if (ftruncate(fd, 100) < 0 || lseek(fd, 0, SEEK_END) != 100)
		return failed("ftruncate");
	if (rename("/tmp/smoke-file", "/tmp/smoke-new") < 0 || unlink("/tmp/smoke-new") < 0)
		return failed("rename or unlink");
	if (access("/tmp/smoke-new", F_OK) == 0)
		return wrong("a removed file is still there");
	return close(fd) < 0 ? failed("close") : 0;
}

static int try_memory(void)
{
	char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int i;

	if (map == MAP_FAILED)
		return failed("mmap");
	for (i = 0; i < SIZE; i += 512)
		if (map[i])
			return wrong("fresh memory is not zero");
	memset(map, 7, SIZE);
	if (mprotect(map, SIZE, PROT_READ) < 0 || map[SIZE - 1] != 7)
		return failed("mprotect");
	map = mremap(map, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
	if (map == MAP_FAILED || map[SIZE - 1] != 7)
		return failed("mremap");
	return munmap(map, 2 * SIZE) < 0 ? failed("munmap") : 0;
}

static void *count(void *value)
{
	__atomic_add_fetch((int *)value, 1, __ATOMIC_SEQ_CST);
	return value;
}

static int try_threads(void)
{
	pthread_t threads[8];
	int counter = 0, i;

	for (i = 0; i < 8; i++)
		if ((errno = pthread_create(&threads[i], NULL, count, &counter)))
			return failed("pthread_create");
	for (i = 0; i < 8; i++)
		if ((errno = pthread_join(threads[i], NULL)))
			return failed("pthread_join");
	return counter == 8 ? 0 : wrong("a thread did not run");
}

static int try_pipes(void)
{
	char byte = 'x';
	int ends[2];
	struct pollfd source;

	if (pipe(ends) < 0)
		return failed("pipe");
	source = (struct pollfd){ ends[0], POLLIN, 0 };
	if (poll(&source, 1, 0) != 0)
		return wrong("an empty pipe has something to read");
	if (write(ends[1], &byte, 1) != 1 || poll(&source, 1, 1000) != 1)
		return failed("write or poll");
	if (read(ends[0], &byte, 1) != 1 || byte != 'x')
		return failed("read");
	close(ends[1]);
	return read(ends[0], &byte, 1) == 0 ? 0 : wrong("a closed pipe has no end");
}

static int try_signals(void)
{
	struct timespec limit = { .tv_sec = 10 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || kill(getpid(), SIGUSR1) < 0)
		return failed("kill");
	return sigtimedwait(&set, NULL, &limit) == SIGUSR1 ? 0 : failed("sigtimedwait");
}

static int try_unix_sockets(void)
{
	char text[8] = "";
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
		return skipped("socketpair");
	if (send(ends[0], "smoke", 6, 0) != 6 || recv(ends[1], text, sizeof(text), 0) != 6)
		return failed("send or recv");
	return strcmp(text, "smoke") ? wrong("something else came than was sent") : 0;
}

static int try_tcp(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t size = sizeof(address);
	int server, client, peer;
	char text[8] = "";

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if ((server = socket(AF_INET, SOCK_STREAM, 0)) < 0)
		return skipped("socket");
	if (bind(server, (struct sockaddr *)&address, size) < 0 || listen(server, 1) < 0 ||
	    getsockname(server, (struct sockaddr *)&address, &size) < 0)
		return failed("bind or listen");
	client = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(client, (struct sockaddr *)&address, size) < 0)
		return failed("connect");
	if ((peer = accept(server, NULL, NULL)) < 0)
		return failed("accept");
	if (send(client, "smoke", 6, 0) != 6 || recv(peer, text, sizeof(text), 0) != 6)
		return failed("send or recv");
	return strcmp(text, "smoke") ? wrong("something else came than was sent") : 0;
}

static int try_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int ends[2], epoll = epoll_create1(0);

	if (epoll < 0)
		return skipped("epoll_create1");
	if (pipe(ends) < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) < 0)
		return failed("epoll_ctl");
	if (epoll_wait(epoll, &event, 1, 0) != 0)
		return wrong("epoll reports an empty pipe");
	if (write(ends[1], "x", 1) != 1 || epoll_wait(epoll, &event, 1, 1000) != 1)
		return failed("epoll_wait");
	return 0;
}

static int try_clock(void)
{
	struct timespec begin, end, pause = { .tv_nsec = 50000000 };

	clock_gettime(CLOCK_MONOTONIC, &begin);
	if (nanosleep(&pause, NULL) < 0)
		return failed("nanosleep");
	clock_gettime(CLOCK_MONOTONIC, &end);
	return (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 < 50
		       ? wrong("sleeping takes no time") : 0;
}

/* Reads a little of every file below. Some refuse: only a crash, or that nothing is there, counts. */
static int walk(const char *path, int depth)
{
	static int files;
	struct dirent *entry;
	char below[512], data[512];
	DIR *folder;
	int fd;

	if (depth == 0 || files > MOST_FILES || !(folder = opendir(path)))
		return files;
	while ((entry = readdir(folder))) {
		if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "kmsg"))
			continue;
		if (snprintf(below, sizeof(below), "%s/%s", path, entry->d_name) >= (int)sizeof(below))
			continue;
		if (entry->d_type == DT_DIR)
			walk(below, depth - 1);
		if (entry->d_type != DT_REG || files++ > MOST_FILES)
			continue;
		if ((fd = open(below, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
			continue;
		if (read(fd, data, sizeof(data)) < 0)
			errno = 0;
		close(fd);
	}
	closedir(folder);
	return files;
}

static int try_proc(void)
{
	if (access("/proc/self/stat", R_OK) < 0) {
		failed("/proc/self/stat");
		return errno == ENOENT ? SKIP : 1;
	}
	walk("/proc/self", DEPTH);
	walk("/proc/sys", DEPTH);
	walk("/proc/1", 2);
	return walk("/proc", 1) > 10 ? 0 : wrong("almost nothing is in /proc");
}

static const struct {
	const char *name;
	int (*run)(void);
} trials[] = {
	{ "mount", try_mount },     { "fork", try_fork },       { "exec", try_exec },
	{ "files", try_files },     { "memory", try_memory },   { "threads", try_threads },
	{ "pipes", try_pipes },     { "signals", try_signals }, { "unix_sockets", try_unix_sockets },
	{ "tcp", try_tcp },         { "epoll", try_epoll },     { "clock", try_clock },
	{ "proc", try_proc },
};

static void attempt(const char *name, int (*run)(void))
{
	static const char *words[] = { "ok", "fail", "skip" };
	int status, result;
	pid_t pid;

	if ((pid = fork()) < 0) {
		printf("fail %s fork: %s\n", name, strerror(errno));
		return;
	}
	if (pid == 0) {
		alarm(SECONDS);
		result = run();
		printf("%s %s%s%s\n", words[result], name, result ? " " : "", result ? why : "");
		fflush(stdout);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		printf("fail %s waitpid: %s\n", name, strerror(errno));
	else if (WIFSIGNALED(status))
		printf("fail %s ended by signal %d%s\n", name, WTERMSIG(status),
		       WTERMSIG(status) == SIGALRM ? ": it took too long" : "");
}

int main(void)
{
	unsigned i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (i = 0; i < sizeof(trials) / sizeof(*trials); i++)
		attempt(trials[i].name, trials[i].run);
	puts("done");
	return 0;
}
