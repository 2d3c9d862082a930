/*
 * Runs a program again and again until stdin ends. The host keeps the time: a guest's clock can
 * run at several times the real speed.
 *
 *     run FOLDER PROGRAM
 *
 * stdout, one line each:
 *     failed ERRNO          PROGRAM cannot be executed; nothing follows
 *     tick RUNS QUICK       about once a second while the program runs
 *     end RUN HOW VALUE MS  a run ended: HOW is `exit` or `signal`; MS is how long it took
 *     stuck COUNT           processes that did not die of SIGKILL
 *     ends HOW VALUE COUNT  before the last line: how many runs ended so
 *     over RUNS QUICK       stdin ended; the program's processes are gone or stuck
 * RUNS counts the runs started; QUICK those that failed within QUICK_MS.
 * stderr: the program's output, at most RATE bytes a second beyond BURST.
 *
 * Each run has the program under a new name, a link in FOLDER, and so has the runner: a patch that
 * knows the name of the reproducer, or of who starts it, shall not know when to be careful.
 *
 * A run lasts until the last of its processes is gone, but at most LINGER_MS longer than the
 * first one, which may have become a daemon. Each run has a fresh folder in FOLDER.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	QUICK_MS = 1000,
	LINGER_MS = 10000,
	KILL_MS = 20000,
	CLEAN_MS = 5000,
	FORK_MS = 15000,
	STEP_MS = 20,
	RATE = 64 << 10,
	BURST = 512 << 10,
	PROCESSES = 1 << 16,
	NAME = 8,
};

static long long next_tick, budget_time;
static long budget = BURST, left_out, runs, quick, exits[256], signals[128];
static int output[2], proc_fd;
static pid_t first;
static int first_status, first_ended, over, waits;

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* A reader that is slow loses ticks; one that is gone ends us. */
static void say(const char *format, ...)
{
	char line[128];
	va_list values;
	int length;

	va_start(values, format);
	length = vsnprintf(line, sizeof(line), format, values);
	va_end(values);
	if (write(1, line, length) < 0 && errno != EAGAIN && errno != EINTR)
		over = 1;
}

/* Passes output on as far as the rate allows; the program never waits for the reader. */
static void pass_output(void)
{
	static char data[64 << 10];
	char note[64];
	long long time = now();
	ssize_t size;
	long part;

	budget += (time - budget_time) * RATE / 1000;
	budget = budget > BURST ? BURST : budget;
	budget_time = time;
	while ((size = read(output[0], data, sizeof(data))) > 0) {
		if (left_out > 0 && budget > (long)sizeof(data)) {
			part = snprintf(note, sizeof(note), "\n[%ld bytes left out]\n", left_out);
			if (write(2, note, part) == part)
				left_out = 0;
		}
		part = left_out ? 0 : size < budget ? size : budget;
		if (part > 0 && (part = write(2, data, part)) < 0)
			part = 0;
		budget -= part;
		left_out += size - part;
		if (now() - time > STEP_MS)
			break;
	}
}

static int reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
		if (pid != first)
			continue;
		first_status = status;
		first_ended = 1;
	}
	return pid == 0; /* some are left */
}

/* One step of waiting: up to STEP_MS, less if a child ends. Returns whether children are left. */
static int serve(void)
{
	struct timespec step = { .tv_nsec = STEP_MS * 1000000 };
	struct pollfd sources[] = { { output[0], POLLIN, 0 }, { over ? -1 : 0, POLLIN, 0 } };
	char order;
	sigset_t none;

	sigemptyset(&none);
	if (ppoll(sources, 2, &step, &none) > 0 && sources[1].revents)
		over = over || read(0, &order, 1) <= 0;
	pass_output();
	if (!waits && now() >= next_tick) {
		next_tick = now() + 1000;
		say("tick %ld %ld\n", runs, quick);
	}
	return reap();
}

/* Signals every descendant; returns how many there are. */
static int signal_descendants(int number)
{
	static pid_t pids[PROCESSES], parents[PROCESSES];
	static char ours[PROCESSES];
	char path[32], stat[512], *after;
	int count = 0, found = 0, grown, i, j, fd;
	struct dirent *entry;
	ssize_t size;
	DIR *dir;

	fd = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !(dir = fdopendir(fd)))
		return 0;
	while ((entry = readdir(dir)) && count < PROCESSES) {
		if ((pids[count] = atoi(entry->d_name)) <= 0)
			continue;
		snprintf(path, sizeof(path), "%d/stat", pids[count]);
		if ((fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC)) < 0)
			continue;
		size = read(fd, stat, sizeof(stat) - 1);
		close(fd);
		stat[size > 0 ? size : 0] = 0;
		if (!(after = strrchr(stat, ')')) || after[1] != ' ' || after[2] == 'Z')
			continue;
		parents[count] = atoi(after + 4);
		ours[count++] = 0;
	}
	closedir(dir);
	do {
		for (grown = 0, i = 0; i < count; i++) {
			if (ours[i])
				continue;
			ours[i] = parents[i] == getpid();
			for (j = 0; j < count && !ours[i]; j++)
				ours[i] = ours[j] && pids[j] == parents[i];
			grown += ours[i];
		}
		found += grown;
	} while (grown);
	for (i = 0; i < count; i++)
		if (ours[i])
			kill(pids[i], number);
	return found;
}

/* A process that waits for an answer of its own fuse file system dies only of this. */
static void abort_fuse(void)
{
	DIR *dir = opendir("/sys/fs/fuse/connections");
	struct dirent *entry;
	char path[300];
	int fd;

	while (dir && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "%d/abort", atoi(entry->d_name));
		if ((fd = openat(dirfd(dir), path, O_WRONLY | O_CLOEXEC)) < 0)
			continue;
		if (write(fd, "1", 1) < 0)
			perror("abort");
		close(fd);
	}
	if (dir)
		closedir(dir);
}

static void kill_all(void)
{
	long long limit = now() + KILL_MS, patience = now() + 1000;
	int left = 0;

	while (now() < limit && reap()) {
		signal_descendants(SIGSTOP); /* so that none forks behind our back */
		left = signal_descendants(SIGKILL);
		serve();
		if (now() > patience)
			abort_fuse();
	}
	if (reap() && left)
		say("stuck %d\n", left);
}

static int removes(const char *path, const struct stat *status, int kind, struct FTW *where)
{
	(void)status, (void)kind, (void)where;
	remove(path);
	return 0;
}

/* In a child, as a broken file system can hold it up for ever. */
static void clean(const char *folder)
{
	long long limit = now() + CLEAN_MS;
	char line[8192], *path;
	FILE *mounts;

	if ((first = fork()) == 0) {
		mounts = fdopen(openat(proc_fd, "self/mounts", O_RDONLY), "r");
		while (mounts && fgets(line, sizeof(line), mounts)) {
			strtok(line, " ");
			path = strtok(NULL, " ");
			if (path && strncmp(path, folder, strlen(folder)) == 0)
				umount2(path, MNT_DETACH);
		}
		nftw(folder, removes, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
		_exit(0);
	}
	while (serve() && now() < limit)
		;
	kill_all();
}

/* Where that cannot be, the name stays. */
static void name_anew(char *name)
{
	unsigned char bytes[NAME];
	int i;

	if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != sizeof(bytes))
		snprintf((char *)bytes, sizeof(bytes), "%lx", (long)now());
	for (i = 0; i < NAME; i++)
		name[i] = 'a' + bytes[i] % 26;
	name[NAME] = 0;
}

static void become(const char *folder, const char *program, int failure)
{
	char *environment[] = { "PATH=/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/root", NULL };
	char *arguments[] = { (char *)program, NULL };
	int fd, error;
	sigset_t none;

	setpgid(0, 0);
	setpriority(PRIO_PROCESS, 0, 0);
	if ((fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)) >= 0 &&
	    write(fd, "0", 1) < 0)
		perror("oom_score_adj");
	fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	dup2(fd, 0);
	dup2(output[1], 1);
	dup2(output[1], 2);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (chdir(folder) == 0)
		execve(program, arguments, environment);
	error = errno;
	if (write(failure, &error, sizeof(error)) < 0)
		perror("failure");
	_exit(127);
}

/* Returns 0, or the error number of why the program cannot be executed. */
static int start(const char *folder, const char *program)
{
	long long limit = now() + FORK_MS;
	int failure[2], error = 0;

	if (mkdir(folder, 0755) < 0 || pipe2(failure, O_CLOEXEC) < 0)
		return errno;
	first_ended = 0;
	while ((first = fork()) < 0 && !over && now() < limit) {
		error = errno; /* no process or memory to be had: what was killed may still hold it */
		waits = 1; /* no ticks: nothing runs */
		serve();
	}
	waits = 0;
	if (first < 0) {
		close(failure[0]);
		close(failure[1]);
		return error ? error : errno;
	}
	error = 0;
	if (first == 0)
		become(folder, program, failure[1]);
	close(failure[1]);
	if (read(failure[0], &error, sizeof(error)) < 0)
		error = errno;
	close(failure[0]);
	return error;
}

static void run_once(void)
{
	long long begin = now(), ended = 0;
	int failed, killed;

	while (serve() && !over && !(ended && now() - ended > LINGER_MS))
		if (first_ended && !ended)
			ended = now();
	killed = !first_ended;
	kill_all();
	pass_output();
	if (killed) { /* by us, which says nothing about the program; cut short, it does not count */
		runs -= runs > 1 && now() - begin < QUICK_MS;
		return;
	}
	if (WIFEXITED(first_status))
		exits[WEXITSTATUS(first_status)]++;
	else
		signals[WTERMSIG(first_status)]++;
	failed = !WIFEXITED(first_status) || WEXITSTATUS(first_status) != 0;
	quick += failed && now() - begin < QUICK_MS;
	say("end %ld %s %d %lld\n", runs, WIFEXITED(first_status) ? "exit" : "signal",
	    WIFEXITED(first_status) ? WEXITSTATUS(first_status) : WTERMSIG(first_status),
	    now() - begin);
}

/* The reader may have missed lines. */
static void sum_up(void)
{
	int value;

	for (value = 0; value < 256; value++)
		if (exits[value])
			say("ends exit %d %ld\n", value, exits[value]);
	for (value = 0; value < 128; value++)
		if (signals[value])
			say("ends signal %d %ld\n", value, signals[value]);
}

static void wake(int number)
{
	(void)number;
}

static void prepare(void)
{
	sigset_t child;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGCHLD, wake);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (pipe2(output, O_CLOEXEC) < 0)
		exit(1);
	fcntl(output[0], F_SETFL, O_NONBLOCK);
	fcntl(1, F_SETFL, O_NONBLOCK);
	fcntl(2, F_SETFL, O_NONBLOCK);
	next_tick = budget_time = now();
}

int main(int count, char **arguments)
{
	char folder[4096], link_name[4096], name[NAME + 1];
	int error;

	if (count != 3) {
		fprintf(stderr, "usage: run FOLDER PROGRAM\n");
		return 2;
	}
	prepare();
	name_anew(name);
	prctl(PR_SET_NAME, name);
	mkdir(arguments[1], 0755);
	while (!over) {
		snprintf(folder, sizeof(folder), "%s/%ld", arguments[1], ++runs);
		name_anew(name);
		snprintf(link_name, sizeof(link_name), "%s/%s", arguments[1], name);
		error = start(folder, link(arguments[2], link_name) ? arguments[2] : link_name);
		if (error != 0) {
			rmdir(folder);
			unlink(link_name);
			if (over && runs-- > 1)
				break;
			say("failed %d\n", error);
			return 1;
		}
		run_once();
		unlink(link_name);
		clean(folder);
	}
	fcntl(1, F_SETFL, 0);
	sum_up();
	say("over %ld %ld\n", runs, quick);
	return 0;
}
