/*
 * Runs a program, again and again, for so many seconds, and tells its system calls, with those of
 * all its processes and threads.
 *
 *     trace SECONDS FOLDER PROGRAM
 *
 * stdout, one line each:
 *     enter CALL            a call is about to be made, with arguments not seen before
 *     call CALL RESULT      it came back so, for the first time: 0, or the error number
 *     died CALL             a process ended in it, without a signal and without asking for it
 *     end HOW VALUE MS      a run ended by itself: HOW is `exit` or `signal`
 *     total CALL RESULT COUNT
 *     pending CALL          it had not come back at the end of the time, LONG_MS after it began
 *     stuck CALL            likewise, and no signal would have interrupted it (state D)
 *     over RUNS
 * CALL is the number of the system call, plus COMPAT for those of 32-bit programs. `total` and what
 * follows come at the end.
 *
 * After each of the first three the reader answers with a byte on stdin, and only then does the
 * program go on: so what was told is known even if the call makes the kernel crash. What is told
 * is bounded, whatever the program does; a reader that does not answer is waited for once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	RUNS = 20,
	ANSWER_MS = 3000,
	LONG_MS = 2000,
	COMPAT = 1 << 16,
	LARGEST = 1024,
	TASKS = 4096,
	RESULTS = 1024,
	ENTRIES = 256,
};

struct task {
	pid_t id, group;
	int in_call, asked_to_end;
	long call;
	long long since;
};

static struct task tasks[TASKS];
static struct {
	long call, result, count;
} results[RESULTS];
static uint64_t entries[ENTRIES];
static int task_count, result_count, entry_count, silent;
static volatile sig_atomic_t late;

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static void tell(const char *line, int wants_answer)
{
	long long limit = now() + ANSWER_MS;
	struct pollfd answer = { 0, POLLIN, 0 };
	char byte;

	if (write(1, line, strlen(line)) < 0 && errno != EINTR)
		late = silent = 1;
	while (wants_answer && !silent) {
		if (poll(&answer, 1, 100) > 0) {
			if (read(0, &byte, 1) <= 0)
				late = silent = 1;
			return;
		}
		silent = now() > limit;
	}
}

static void tell_call(const char *word, long call)
{
	char line[64];

	snprintf(line, sizeof(line), "%s %ld\n", word, call);
	tell(line, 1);
}

static void count(long call, long result)
{
	char line[64];
	int i;

	for (i = 0; i < result_count; i++)
		if (results[i].call == call && results[i].result == result) {
			results[i].count++;
			return;
		}
	if (result_count == RESULTS)
		return;
	results[i].call = call;
	results[i].result = result;
	results[i].count = 1;
	result_count++;
	snprintf(line, sizeof(line), "call %ld %ld\n", call, result);
	tell(line, 1);
}

/* Arguments count by their value where they are small, as addresses differ from run to run. */
static void enter(long call, const struct user_regs_struct *regs)
{
	uint64_t values[] = { regs->rdi, regs->rsi, regs->rdx, regs->r10 }, hash = call + 1;
	unsigned i;

	for (i = 0; i < 4; i++)
		hash = hash * 0x100000001b3 ^ (values[i] < 1 << 16 ? values[i] : 1 << 16);
	for (i = 0; i < (unsigned)entry_count; i++)
		if (entries[i] == hash)
			return;
	if (entry_count == ENTRIES)
		return;
	entries[entry_count++] = hash;
	tell_call("enter", call);
}

/* Returns what stands behind `name` in the status of a task; empty if it is gone. */
static const char *status_of(pid_t id, const char *name)
{
	static char text[1024];
	char path[64], *found;
	ssize_t size;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/status", id);
	if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return "";
	size = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[size > 0 ? size : 0] = 0;
	if (!(found = strstr(text, name)))
		return "";
	found += strlen(name);
	return found + strspn(found, " \t");
}

static pid_t group_of(pid_t id)
{
	pid_t group = atoi(status_of(id, "\nTgid:"));

	return group > 0 ? group : id;
}

static struct task *task_of(pid_t id)
{
	int i;

	for (i = 0; i < task_count; i++)
		if (tasks[i].id == id)
			return &tasks[i];
	if (task_count == TASKS)
		return NULL;
	tasks[task_count] = (struct task){ .id = id, .group = group_of(id) };
	return &tasks[task_count++];
}

static void syscall_stop(struct task *task)
{
	struct user_regs_struct regs;
	long call, result;
	int i;

	if (ptrace(PTRACE_GETREGS, task->id, NULL, &regs) < 0)
		return;
	call = (long)regs.orig_rax;
	if (call < 0 || call >= LARGEST)
		call = LARGEST;
	call += regs.cs == 0x23 ? COMPAT : 0;
	if (!task->in_call) {
		if ((long)regs.rax != -ENOSYS)
			return; /* the way out of a call that was not seen to begin */
		task->in_call = 1;
		task->call = call;
		if (call == SYS_exit || call == SYS_exit_group)
			for (i = 0; i < task_count; i++)
				if (tasks[i].id == task->id ||
				    (call == SYS_exit_group && tasks[i].group == task->group))
					tasks[i].asked_to_end = 1;
		enter(call, &regs);
		task->since = now();
		return;
	}
	task->in_call = 0;
	result = (long)regs.rax;
	result = result < 0 && result >= -4095 ? -result : 0;
	count(task->call, result);
}

static void gone(struct task *task, int status)
{
	if (task->in_call && !task->asked_to_end && WIFEXITED(status) &&
	    task->call != SYS_execve && task->call != SYS_execveat)
		tell_call("died", task->call);
	*task = tasks[--task_count];
}

/* Handles one event; returns the signal to pass on. */
static int stopped(struct task *task, int status)
{
	int number = WSTOPSIG(status), event = status >> 16, fresh = !task->call && !task->in_call;

	if (number == (SIGTRAP | 0x80)) {
		syscall_stop(task);
		return 0;
	}
	if (event == PTRACE_EVENT_EXEC) {
		task->in_call = 1;
		task->call = SYS_execve;
		task->since = now();
	}
	if (event || (number == SIGSTOP && fresh))
		return 0;
	return number;
}

static void become(const char *folder, const char *program)
{
	char *environment[] = { "PATH=/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/root", NULL };
	char *arguments[] = { (char *)program, NULL };
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	setpgid(0, 0);
	dup2(fd, 0);
	dup2(fd, 1);
	dup2(fd, 2);
	if (chdir(folder) < 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(127);
	raise(SIGSTOP);
	execve(program, arguments, environment);
	_exit(127);
}

/* Follows one run to the end of all its processes, or to the end of the time. */
static void follow(pid_t first)
{
	const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
			     PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
	long long begin = now();
	struct task *task;
	char line[64];
	int status;
	pid_t id;

	if (waitpid(first, &status, __WALL) < 0 || !WIFSTOPPED(status))
		return;
	ptrace(PTRACE_SETOPTIONS, first, NULL, options);
	task_of(first)->call = SYS_execve;
	ptrace(PTRACE_SYSCALL, first, NULL, 0L);
	while (!late && (id = waitpid(-1, &status, __WALL)) > 0) {
		if (!(task = task_of(id))) {
			ptrace(PTRACE_DETACH, id, NULL, 0L);
			continue;
		}
		if (WIFSTOPPED(status)) {
			ptrace(PTRACE_SYSCALL, id, NULL, (long)stopped(task, status));
			continue;
		}
		gone(task, status);
		if (id != first)
			continue;
		snprintf(line, sizeof(line), "end %s %d %lld\n",
			 WIFEXITED(status) ? "exit" : "signal",
			 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), now() - begin);
		tell(line, 0);
	}
}

/* Tells the calls that have not come back; a moment in state D is nothing, two are. */
static void tell_pending(void)
{
	struct timespec moment = { .tv_nsec = 300000000 };
	char line[64], stuck[RESULTS];
	int i, count = task_count < RESULTS ? task_count : RESULTS;

	for (i = 0; i < count; i++)
		stuck[i] = *status_of(tasks[i].id, "\nState:") == 'D';
	while (count && nanosleep(&moment, &moment) < 0 && errno == EINTR)
		;
	for (i = 0; i < count; i++) {
		/* One that is stopped waits for us. */
		if (!tasks[i].in_call || now() - tasks[i].since < LONG_MS ||
		    *status_of(tasks[i].id, "\nState:") == 't')
			continue;
		stuck[i] = stuck[i] && *status_of(tasks[i].id, "\nState:") == 'D';
		snprintf(line, sizeof(line), "%s %ld\n", stuck[i] ? "stuck" : "pending",
			 tasks[i].call);
		tell(line, 0);
	}
}

static void sum_up(int runs)
{
	char line[96];
	int i;

	for (i = 0; i < result_count; i++) {
		snprintf(line, sizeof(line), "total %ld %ld %ld\n", results[i].call,
			 results[i].result, results[i].count);
		tell(line, 0);
	}
	tell_pending();
	snprintf(line, sizeof(line), "over %d\n", runs);
	tell(line, 0);
}

static void ring(int number)
{
	(void)number;
	late = 1;
}

int main(int count, char **arguments)
{
	struct itimerval timer = { .it_interval = { .tv_usec = 100000 } };
	struct sigaction action = { .sa_handler = ring };
	char folder[4096];
	pid_t first;
	int run;

	if (count != 4) {
		fprintf(stderr, "usage: trace SECONDS FOLDER PROGRAM\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGALRM, &action, NULL); /* without SA_RESTART: it ends a wait */
	timer.it_value.tv_sec = atoi(arguments[1]);
	setitimer(ITIMER_REAL, &timer, NULL);
	mkdir(arguments[2], 0755);
	for (run = 0; run < RUNS && !late; run++) {
		snprintf(folder, sizeof(folder), "%s/%d", arguments[2], run);
		mkdir(folder, 0755);
		if ((first = fork()) < 0)
			break;
		if (first == 0)
			become(folder, arguments[3]);
		follow(first);
	}
	sum_up(run);
	return 0; /* which kills what still runs */
}
