/*
 * Runs variants of a program: each run changes a few of its system calls, chosen by a seed.
 *
 *     vary FOLDER PROGRAM WORDS
 *
 * WORDS is a file with the bug's dictionary, one entry a line: `value HEX`, `field SHIFT WIDTH`,
 * `string HEX...`.
 *
 * Orders on stdin, answers on stdout, one line each:
 *     learn                  run the program unchanged, a few times
 *       at CALLS MS PAUSE        (per call that can be changed, before it is made; of the first
 *                                ASKED, each is made once a line `go` has come)
 *       learned CALLS MS PAUSE   the calls that can be changed, how long a run takes, and how
 *                                long it makes no call
 *     use CALLS MS PAUSE     change one to three of the first CALLS calls; cut a run off after MS,
 *                            or when it has made no call for PAUSE
 *     sweep SEED COUNT       run COUNT variants from SEED on, fast: they share the program's memory,
 *                            which is restored after each variant; their mappings are not removed
 *     exact SEED COUNT       the same, each with memory of its own
 *     plain SEED COUNT       run the program unchanged, so often
 *       ran SEED DIGEST CHANGES FAILED CUT   (per variant)
 *       swept SEED
 *     show SEED MASK         run one variant with those changes whose bit is set in MASK
 *       change BIT CALL ORDINAL WHAT FROM TO (per change; it is made once a line `go` has come)
 *       call TASK CALL RESULT WRITTEN        (per call, in order, at most SHOWN)
 *       shown SEED DIGEST CUT
 * DIGEST consists of two hashes: of all calls with their results, and of the data that the calls
 * wrote behind their arguments (not in `sweep`). WRITTEN is the second hash, for one call. FAILED
 * counts the calls that failed. CUT is 1 if the variant was cut off: its digest depends on the time.
 *
 * A variant does the same on every kernel as long as the program makes the same calls: what is
 * changed depends on the seed and on the place of the call, on nothing else. With bit LAST_CALL of
 * the seed set, one of the changes is in the last call.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	LEARN_RUNS = 3,
	LEAST_MS = 50,
	MOST_MS = 1000,
	LEAST_PAUSE_MS = 15,
	EXACT_MS = 300, /* what is compared has longer, as QEMU may yet have to translate the code */
	EXACT_PAUSE_MS = 100,
	TICK_US = 5000,
	TASKS = 256,
	CALLS = 20000, /* of a variant: a program that never stops calling is cut off */
	SHOWN = 400,
	ASKED = 60,
	CHANGES = 3,
	WORDS = 4096,
	STRING = 64,
	KILL_MS = 5000,
	REGIONS = 64,
	PAGE = 4096,
	SHARED_BYTES = 1 << 20, /* of memory that is restored after each variant */
	RED_ZONE = 128, /* below the stack pointer: System V ABI for AMD64, 3.2.2 */
	BYTES = 256, /* of a buffer that are looked at */
	LARGEST = 1024,
	LAST_CALL = 47, /* bit of a seed: one change is in the last call */
	ARGUMENTS = 6,
	WRITTEN = 128, /* bytes behind an argument that are compared */
};

#define HELPER (CLONE_FILES | CLONE_FS | CLONE_VM | SIGCHLD) /* flags of the process that helps */

typedef uint64_t u64;

/* A process is announced by its parent, and stops before it begins, in either order. */
enum { RUNS, ANNOUNCED, WAITS };

/* What stood behind an argument before the call. */
struct buffer {
	u64 at;
	int size;
	unsigned char bytes[WRITTEN];
};

struct task {
	pid_t id;
	int number, in_call, clone, again, helps, state;
	long call;
	u64 digest, written;
	struct user_regs_struct before;
	struct buffer buffers[ARGUMENTS];
};

/* --- what a seed says ------------------------------------------------------------------------ */

struct random {
	u64 state;
};

/* splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static u64 next(struct random *random)
{
	u64 z = random->state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static u64 below(struct random *random, u64 limit)
{
	return next(random) % limit;
}

static u64 values[WORDS];
static struct {
	int shift, width;
} fields[WORDS];
static struct {
	int size;
	unsigned char bytes[STRING];
} strings[WORDS];
static int value_count, field_count, string_count;

static void read_words(const char *path)
{
	FILE *file = fopen(path, "r");
	unsigned byte;
	char line[1024], *at;
	int used;

	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "value ", 6) == 0 && value_count < WORDS)
			values[value_count++] = strtoull(line + 6, NULL, 16);
		if (field_count < WORDS && sscanf(line, "field %d %d", &fields[field_count].shift,
						  &fields[field_count].width) == 2 &&
		    fields[field_count].shift >= 0 && fields[field_count].width > 0 &&
		    fields[field_count].shift + fields[field_count].width <= 64)
			field_count++;
		if (strncmp(line, "string ", 7) == 0 && string_count < WORDS) {
			for (at = line + 7; strings[string_count].size < STRING &&
					    sscanf(at, "%2x%n", &byte, &used) == 1; at += used)
				strings[string_count].bytes[strings[string_count].size++] = byte;
			string_count += strings[string_count].size > 0;
		}
	}
	if (file)
		fclose(file);
}

/* --- the state of one run -------------------------------------------------------------------- */

static struct task tasks[TASKS];
static int shares; /* whether variants share the program's memory */
static int task_count, task_total, change_count, changes, bit, mask = ~0, shows, learns, failed;
static long calls, candidates, usual_calls, places[CHANGES];
/* Of a variant: its time, how long none of its tasks may make a call, the longest such time yet. */
static long long limit_ms = MOST_MS, pause_ms = MOST_MS, longest, begun, last;
static u64 seed;
static int is_cut_off;
static pid_t origin; /* the program, stopped before its first call of interest */

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* While a variant runs, a timer interrupts waits. It must not interrupt reading orders. */
static void tick(int microseconds)
{
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };

	setitimer(ITIMER_REAL, &timer, NULL);
}

static struct task *task_of(pid_t id)
{
	int i;

	for (i = 0; i < task_count; i++)
		if (tasks[i].id == id)
			return &tasks[i];
	return NULL;
}

static struct task *new_task(pid_t id)
{
	if (task_count == TASKS)
		return NULL;
	tasks[task_count] = (struct task){ .id = id, .number = task_total++ };
	return &tasks[task_count++];
}

/* --- the changes ----------------------------------------------------------------------------- */

/* What every program needs to start, to wait and to end, and what would end the guest. */
static int is_left_alone(long call, const struct user_regs_struct *regs)
{
	switch (call) {
	case SYS_execve: case SYS_execveat: case SYS_brk: case SYS_arch_prctl:
	case SYS_set_tid_address: case SYS_set_robust_list: case SYS_rseq: case SYS_prlimit64:
	case SYS_getrandom: case SYS_mprotect: case SYS_munmap: case SYS_exit: case SYS_exit_group:
	case SYS_rt_sigaction: case SYS_rt_sigprocmask: case SYS_rt_sigreturn: case SYS_reboot:
	case SYS_kexec_load: case SYS_kexec_file_load: case SYS_kill: case SYS_tkill:
	case SYS_tgkill: case SYS_rt_sigqueueinfo: case SYS_rt_tgsigqueueinfo:
	case SYS_pidfd_send_signal: case SYS_ptrace: case SYS_process_vm_writev:
	case SYS_init_module: case SYS_finit_module: case SYS_delete_module: case SYS_swapon:
	case SYS_settimeofday: case SYS_clock_settime: case SYS_pivot_root: case SYS_chroot:
	case SYS_fork: case SYS_vfork: case SYS_clone: case SYS_clone3: case SYS_wait4:
	case SYS_waitid: case SYS_readlink: case SYS_readlinkat:
		return 1;
	case SYS_write: case SYS_fstat: case SYS_newfstatat: case SYS_ioctl: case SYS_lseek:
		return regs->rdi <= 2; /* what it prints */
	}
	return call < 0 || call >= LARGEST;
}

/* Calls whose results are numbers of processes: they differ from run to run. */
static int gives_process(long call)
{
	switch (call) {
	case SYS_set_tid_address: case SYS_getpid: case SYS_gettid: case SYS_getppid:
	case SYS_fork: case SYS_vfork: case SYS_clone: case SYS_clone3: case SYS_setsid:
	case SYS_getpgid: case SYS_getpgrp: case SYS_getsid: case SYS_wait4: case SYS_waitid:
		return 1;
	}
	return 0;
}

/* Calls that write times, or times of files. C libraries call fstat before they print an error. */
static int gives_times(long call)
{
	switch (call) {
	case SYS_stat: case SYS_fstat: case SYS_lstat: case SYS_newfstatat: case SYS_statx:
	case SYS_gettimeofday: case SYS_time: case SYS_times: case SYS_getrusage: case SYS_sysinfo:
	case SYS_clock_gettime: case SYS_getitimer: case SYS_setitimer: case SYS_timer_gettime:
	case SYS_timer_settime: case SYS_timerfd_gettime: case SYS_timerfd_settime: case SYS_select:
	case SYS_pselect6: case SYS_ppoll: case SYS_nanosleep: case SYS_clock_nanosleep:
		return 1;
	}
	return 0;
}

/* Without them the rest of a program does nothing. */
static int sets_up(long call)
{
	switch (call) {
	case SYS_open: case SYS_openat: case SYS_socket: case SYS_socketpair: case SYS_pipe:
	case SYS_pipe2: case SYS_mmap: case SYS_mkdir: case SYS_mount: case SYS_unshare:
	case SYS_dup: case SYS_dup2: case SYS_dup3: case SYS_eventfd2: case SYS_memfd_create:
	case SYS_epoll_create1: case SYS_nanosleep: case SYS_clock_nanosleep: case SYS_prctl:
		return 1;
	}
	return 0;
}

/* How many arguments calls have (arch/x86/entry/syscalls/syscall_64.tbl and SYSCALL_DEFINEn). */
static int argument_count(long call)
{
	static const char from_0[] =
		"33312223363214403553321505333333120221304333663323233455500314213341245332112232"
		"11221221232233312221140301100200022223333111122243222361222323223111222100320521"
		"21012522142213632664666666045554443332222163362153366166531044342112224144326635"
		"41552345545320324434534345343365123646464632164244213215545525453214236653345332"
		"535133666421564";
	static const char from_424[] = "426435253322343456543421254";

	if (call >= 0 && call < (long)sizeof(from_0) - 1)
		return from_0[call] - '0';
	if (call >= 424 && call < 424 + (long)sizeof(from_424) - 1)
		return from_424[call - 424] - '0';
	return 6;
}

/* The first entries of the dictionary are those of the function that crashes. */
static int early(struct random *random, int count)
{
	int first = below(random, count), second = below(random, count);

	return first < second ? first : second;
}

/* Returns another value of a number that is `size` bytes large. */
static u64 other_value(struct random *random, u64 value, int size)
{
	u64 all = size == 8 ? ~0ULL : (1ULL << 8 * size) - 1, word, part;
	int field, tries;

	word = value_count ? values[early(random, value_count)] : 1ULL << below(random, 64);
	switch (below(random, field_count ? 14 : 9)) {
	case 0: value += 1; break;
	case 1: value -= 1; break;
	case 2: value = 0; break;
	case 3: value = ~0ULL; break;
	case 4: value ^= 1ULL << below(random, 8 * size); break;
	case 5: value = (1ULL << below(random, 8 * size)) + below(random, 3) - 1; break;
	case 6: value = word; break;
	case 7: value = word + below(random, 3) - 1; break;
	case 8: value = -value; break;
	default: /* a bit field of it becomes a word of the dictionary that fits in */
		field = early(random, field_count);
		part = fields[field].width == 64 ? ~0ULL : (1ULL << fields[field].width) - 1;
		for (tries = 0; word > part && value_count && tries < 8; tries++)
			word = values[early(random, value_count)];
		word += below(random, 3) - 1;
		value = (value & ~(part << fields[field].shift)) |
			(word & part) << fields[field].shift;
	}
	return value & all;
}

/* Opens the memory of a task. Not all kernels have process_vm_readv (CONFIG_CROSS_MEMORY_ATTACH). */
static int open_memory(pid_t id)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/mem", id);
	return open(path, O_RDWR | O_CLOEXEC);
}

static int peek(pid_t id, u64 at, void *bytes, int size)
{
	int fd = at < 4096 || at >> 47 ? -1 : open_memory(id), known = -1;

	if (fd >= 0) {
		known = pread(fd, bytes, size, at);
		close(fd);
	}
	return known;
}

static int poke(pid_t id, u64 at, const void *bytes, int size)
{
	int fd = open_memory(id), written = 0;

	if (fd >= 0) {
		written = pwrite(fd, bytes, size, at) == size;
		close(fd);
	}
	return written;
}

/* Waits for the host: the kernel may crash in the next call, and the host has to know of it. */
static void wait_for_go(void)
{
	long long asked = now(), waited;
	char line[64];

	fflush(stdout);
	tick(0);
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "go\n") != 0)
		;
	/* The host's time is not the variant's. */
	waited = now() - asked;
	begun += waited;
	last += waited;
	tick(TICK_US);
}

static void tell(struct task *task, const char *what, u64 from, u64 to)
{
	if (!shows)
		return;
	printf("change %d %ld %ld %s %llx %llx\n", bit, task->call, candidates, what,
	       (unsigned long long)from, (unsigned long long)to);
	wait_for_go();
}

/* Changes a number, a string or a pointer's target in the memory at `at`. */
static int change_memory(struct random *random, struct task *task, u64 at, int depth)
{
	unsigned char bytes[BYTES];
	u64 value = 0, other;
	int known = peek(task->id, at, bytes, sizeof(bytes)), size, where, word;

	if (known <= 0) /* near the end of a mapping */
		known = peek(task->id, at, bytes, 16);
	if (known <= 0)
		return 0;
	/* Most of what counts stands at the begin of a structure. */
	size = 1 << below(random, 4);
	size = size > known ? 1 : size;
	where = below(random, below(random, 2) ? known : known < 32 ? known : 32) / size * size;
	if (where + size > known)
		where = 0;
	memcpy(&value, bytes + where, size);
	if (size == 8 && depth < 2 && below(random, 4)) {
		unsigned char probe;

		if (peek(task->id, value, &probe, 1) == 1)
			return change_memory(random, task, value, depth + 1);
	}
	if (string_count && below(random, 6) == 0) {
		word = early(random, string_count);
		size = strings[word].size;
		tell(task, depth ? "string-behind" : "string", where, word);
		return poke(task->id, at + (below(random, 2) ? where : 0), strings[word].bytes, size);
	}
	other = other_value(random, value, size);
	tell(task, depth ? "memory-behind" : "memory", value, other);
	return poke(task->id, at + where, &other, size);
}

/* Changes a word in memory that the program shares with the kernel (rings of io_uring, packets). */
static int change_shared(struct random *random, struct task *task)
{
	char path[64], line[512], access[8];
	u64 begin, end, chosen = 0, size = 0;
	unsigned seen = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", task->id);
	if (!(maps = fopen(path, "r")))
		return 0;
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %7s", &begin, &end, access) == 3 &&
		    access[1] == 'w' && access[3] == 's' && below(random, ++seen) == 0) {
			chosen = begin;
			size = end - begin;
		}
	fclose(maps);
	if (!chosen)
		return 0;
	return change_memory(random, task, chosen + below(random, size < 512 ? size : 512) / 8 * 8, 1);
}

static u64 *argument(struct user_regs_struct *regs, int number)
{
	switch (number) {
	case 0: return (u64 *)&regs->rdi;
	case 1: return (u64 *)&regs->rsi;
	case 2: return (u64 *)&regs->rdx;
	case 3: return (u64 *)&regs->r10;
	case 4: return (u64 *)&regs->r8;
	default: return (u64 *)&regs->r9;
	}
}

/* Makes one change to the call that `task` is about to make; returns whether something changed. */
static int change(struct random *random, struct task *task, struct user_regs_struct *regs)
{
	static const char *const names[] = { "argument-0", "argument-1", "argument-2",
					     "argument-3", "argument-4", "argument-5" };
	int count = argument_count(task->call), number = count ? below(random, count) : 0;
	u64 *value = argument(regs, number), other;
	unsigned char byte;

	switch (below(random, 16)) {
	case 0:
		tell(task, "left-out", 0, 0);
		regs->orig_rax = -1; /* no call; its result is set on the way out */
		return 1;
	case 1: case 2:
		tell(task, "repeated", 0, 0);
		task->again = 1 + below(random, 3);
		return 1;
	case 3: /* a second process, which shares all that matters, makes the call at the same time */
		tell(task, "beside", 0, 0);
		task->clone = 1;
		regs->orig_rax = SYS_clone;
		regs->rdi = HELPER;
		regs->rsi = regs->rdx = regs->r10 = regs->r8 = 0;
		return 1;
	case 4:
		other = 3 + below(random, 8);
		tell(task, "descriptor", regs->rdi, other);
		if (regs->rdi > 1024)
			return 0;
		regs->rdi = other;
		return 1;
	case 5:
		return change_shared(random, task);
	}
	if (peek(task->id, *value, &byte, 1) == 1 && below(random, 16))
		return change_memory(random, task, *value, 0);
	other = other_value(random, *value, 8);
	tell(task, names[number], *value, other);
	*value = other;
	return 1;
}

/* --- one run --------------------------------------------------------------------------------- */

static u64 mix(u64 hash, u64 value)
{
	return (hash ^ value) * 0x100000001b3;
}

static void save_buffers(struct task *task, struct user_regs_struct *regs)
{
	int count = argument_count(task->call), i;

	for (i = 0; i < count; i++) {
		struct buffer *buffer = &task->buffers[i];

		buffer->at = *argument(regs, i);
		buffer->size = peek(task->id, buffer->at, buffer->bytes, WRITTEN);
	}
}

/* Returns a hash of what the call has changed in its buffers; 0 if nothing. */
static u64 written(struct task *task)
{
	unsigned char bytes[WRITTEN];
	u64 hash = 0;
	int i, j, size;

	for (i = 0; i < ARGUMENTS; i++) {
		struct buffer *buffer = &task->buffers[i];

		size = buffer->size > 0 ? peek(task->id, buffer->at, bytes, buffer->size) : 0;
		for (j = 0; j < size; j++)
			if (bytes[j] != buffer->bytes[j])
				hash = mix(mix(hash, 1 + i * WRITTEN + j), bytes[j]);
	}
	return hash;
}

static void enter(struct task *task)
{
	struct user_regs_struct regs;
	struct random random;
	int i;

	if (ptrace(PTRACE_GETREGS, task->id, NULL, &regs) < 0)
		return;
	task->in_call = 1;
	task->call = regs.cs == 0x23 ? LARGEST : (long)regs.orig_rax;
	task->before = regs;
	for (i = 0; i < ARGUMENTS; i++)
		task->buffers[i].size = 0;
	if (is_left_alone(task->call, &regs))
		return;
	if (learns) {
		printf("at %ld %lld %lld\n", candidates + 1, now() - begun, longest);
		if (candidates < ASKED)
			wait_for_go();
	}
	/* Once it is another call (see `change`), nothing else is changed at this place. */
	for (i = 0; i < change_count && !task->clone; i++) {
		if (places[i] != candidates)
			continue;
		random.state = mix(mix(0xcbf29ce484222325, seed), i);
		next(&random);
		if (sets_up(task->call) && below(&random, 8)) {
			places[i]++; /* the next call, most of the time */
			continue;
		}
		bit = i;
		if (mask & 1 << i && change(&random, task, &regs)) {
			ptrace(PTRACE_SETREGS, task->id, NULL, &regs);
			changes++;
		}
	}
	if (!shares && !gives_times(task->call)) /* it is slow */
		save_buffers(task, task->clone ? &task->before : &regs);
	candidates++;
}

/* The call once more, with its own arguments: the instruction is two bytes long. */
static void call_again(pid_t id, const struct user_regs_struct *before)
{
	struct user_regs_struct regs = *before;

	regs.rax = regs.orig_rax;
	regs.rip -= 2;
	regs.orig_rax = -1;
	ptrace(PTRACE_SETREGS, id, NULL, &regs);
}

static void leave(struct task *task)
{
	struct user_regs_struct regs;
	long result;
	u64 data;

	task->in_call = 0;
	if (task->helps) { /* its one call is made */
		kill(task->id, SIGKILL);
		return;
	}
	if (ptrace(PTRACE_GETREGS, task->id, NULL, &regs) < 0)
		return;
	if (task->clone) { /* the second process is there: now the call itself */
		task->clone = 0;
		task->in_call = 2;
		call_again(task->id, &task->before);
		return;
	}
	result = (long)regs.rax;
	if ((long)regs.orig_rax == -1 && result == -ENOSYS) {
		regs.rax = result = 0;
		ptrace(PTRACE_SETREGS, task->id, NULL, &regs);
	}
	if (result < -4095 || result >= 1 << 16 || (result > 0 && gives_process(task->call)))
		result = 0; /* addresses and processes differ from run to run */
	failed += result < 0;
	task->digest = mix(mix(task->digest, task->call), result);
	data = written(task);
	task->written = mix(task->written, data);
	if (shows && calls < SHOWN)
		printf("call %d %ld %ld %llx\n", task->number, task->call, result,
		       (unsigned long long)data);
	if (task->again) {
		task->again--;
		task->in_call = 2;
		call_again(task->id, &task->before);
	}
}

static void syscall_stop(struct task *task)
{
	calls++;
	if (task->in_call == 2) /* a call that was made again begins */
		task->in_call = 1;
	else if (task->in_call)
		leave(task);
	else
		enter(task);
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
	personality(ADDR_NO_RANDOMIZE); /* addresses may be part of what calls write */
	if (chdir(folder) < 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(127);
	raise(SIGSTOP);
	execve(program, arguments, environment);
	_exit(127);
}

static u64 digest, all_written;

/* Adds what a task has done to what the variant does; the order in which tasks end is chance. */
static void add(const struct task *task)
{
	if (task->helps)
		return;
	digest += mix(task->digest, task->number);
	all_written += mix(task->written, task->number);
}

static void gone(struct task *task, int status)
{
	task->digest = mix(task->digest, status);
	add(task);
	*task = tasks[--task_count];
}

/* Lets a new process begin; one that `change` made first makes the call of its parent. */
static void begin(struct task *task)
{
	task->state = RUNS;
	if (task->helps) {
		task->in_call = 2;
		call_again(task->id, &task->before);
	}
}

/* Notes the process that a task has made: it cannot outlive this variant unseen. */
static void announced(struct task *parent, pid_t id)
{
	struct task *child = task_of(id);
	int waits = child && child->state == WAITS;

	if (!child && !(child = new_task(id))) {
		kill(id, SIGKILL);
		return;
	}
	child->state = ANNOUNCED;
	if (parent->clone) {
		child->helps = 1;
		child->call = parent->call;
		child->before = parent->before;
		task_total--;
	}
	if (waits) {
		begin(child);
		ptrace(PTRACE_SYSCALL, id, NULL, 0L);
	}
}

/* Handles one stop of a task, and resumes it. */
static void stopped(struct task *task, int status)
{
	int number = WSTOPSIG(status), event = status >> 16;
	unsigned long child;

	if (task->state == ANNOUNCED) {
		begin(task);
		number = 0;
	} else if (number == (SIGTRAP | 0x80)) {
		syscall_stop(task);
		number = 0;
	} else if (event) {
		number = 0;
		if ((event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK ||
		     event == PTRACE_EVENT_CLONE) &&
		    ptrace(PTRACE_GETEVENTMSG, task->id, NULL, &child) == 0)
			announced(task, child);
	}
	ptrace(PTRACE_SYSCALL, task->id, NULL, (long)number);
}

static void kill_all(void)
{
	long long limit = now() + KILL_MS;
	struct task *task;
	int i, status;
	pid_t id;

	for (i = 0; i < task_count; i++)
		kill(tasks[i].id, SIGKILL);
	while (task_count && now() < limit) {
		if ((id = waitpid(-1, &status, __WALL | WNOHANG)) <= 0)
			usleep(200);
		else if (!(task = task_of(id)) || WIFSTOPPED(status)) /* it was born meanwhile */
			kill(id, SIGKILL);
		else
			*task = tasks[--task_count];
	}
	if (task_count) { /* it would be in the way of all later variants, perhaps with a lock */
		printf("failed %d\n", EDEADLK);
		exit(1);
	}
	while ((id = waitpid(-1, &status, __WALL | WNOHANG)) > 0)
		if (WIFSTOPPED(status) && id != origin)
			kill(id, SIGKILL);
}

static void ring(int number)
{
	(void)number; /* it only interrupts a wait */
}

/* Where the seed changes something: one to three calls, by their place among those it may change. */
static void choose_places(void)
{
	struct random random = { seed };
	int i;

	/* Mostly one: a second change often hides what the first one does. */
	change_count = usual_calls ? 1 + below(&random, below(&random, CHANGES) + 1) : 0;
	for (i = 0; i < change_count; i++) {
		places[i] = below(&random, usual_calls);
		/* Half of them near the last call: on the unpatched kernel, the one that crashes. */
		if (below(&random, 2))
			for (places[i] = usual_calls - 1; places[i] > 0 && below(&random, 2);)
				places[i]--;
	}
	if (change_count && seed >> LAST_CALL & 1)
		places[0] = usual_calls - 1;
}

/* --- the program, stopped before its first call of interest; each variant is a fork of it ----- */

static struct user_regs_struct origin_regs;

/* Waits for the next stop of one process; returns 0 if it has ended instead. */
static int wait_stop(pid_t id, int *status)
{
	pid_t ended;

	while ((ended = waitpid(id, status, __WALL)) < 0 && errno == EINTR)
		;
	return ended == id && WIFSTOPPED(*status);
}

/* Runs a process until it enters or leaves a system call; sets `child` if it makes a process. */
static int to_call(pid_t id, unsigned long *child)
{
	int status;

	do {
		ptrace(PTRACE_SYSCALL, id, NULL, 0L);
		if (!wait_stop(id, &status))
			return 0;
		if (status >> 16 == PTRACE_EVENT_FORK || status >> 16 == PTRACE_EVENT_CLONE)
			ptrace(PTRACE_GETEVENTMSG, id, NULL, child);
	} while (WSTOPSIG(status) != (SIGTRAP | 0x80));
	return 1;
}

static void end_origin(void)
{
	int status;

	if (origin > 0) {
		kill(origin, SIGKILL);
		while (waitpid(origin, &status, __WALL) < 0 && errno == EINTR)
			;
	}
	origin = -1;
}

/* Making a process costs most of a variant, and copying its memory most of that. */
static struct {
	u64 at;
	int size;
	unsigned char *bytes;
} saved[REGIONS];
static unsigned char saved_bytes[SHARED_BYTES];
static int saved_count, saved_size, is_shared;

/* Saves the pages of a region; of a heap, those that are in use. Returns 0 if it is too much. */
static int save_region(int memory, u64 begin, u64 end, int is_heap)
{
	static const unsigned char zeros[PAGE];
	unsigned char *bytes;
	int size;

	for (; begin < end; begin += size) {
		size = end - begin < PAGE ? end - begin : PAGE - begin % PAGE;
		bytes = saved_bytes + saved_size;
		if (saved_size + size > SHARED_BYTES || pread(memory, bytes, size, begin) != size)
			return 0;
		if (is_heap && memcmp(bytes, zeros, size) == 0)
			continue;
		if (!saved_count || saved[saved_count - 1].at + saved[saved_count - 1].size != begin) {
			if (saved_count == REGIONS)
				return 0;
			saved[saved_count].at = begin;
			saved[saved_count].size = 0;
			saved[saved_count++].bytes = bytes;
		}
		saved[saved_count - 1].size += size;
		saved_size += size;
	}
	return 1;
}

/* Saves what the program may write to; returns 0 if it is too much. */
static int save_memory(void)
{
	char path[64], line[512], access[8];
	int memory = open_memory(origin), well = memory >= 0;
	u64 begin, end;
	FILE *maps;

	saved_count = saved_size = 0;
	snprintf(path, sizeof(path), "/proc/%d/maps", origin);
	if (!(maps = fopen(path, "r")))
		well = 0;
	while (well && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &begin, &end, access) != 3 || access[1] != 'w' ||
		    access[3] == 's')
			continue;
		if (origin_regs.rsp > begin && origin_regs.rsp < end) /* what is below is free */
			begin = (origin_regs.rsp - RED_ZONE) & ~7ULL;
		well = save_region(memory, begin, end, strstr(line, "[heap]") != NULL);
	}
	if (maps)
		fclose(maps);
	if (memory >= 0)
		close(memory);
	return well;
}

static int restore_memory(void)
{
	int memory = open_memory(origin), well = memory >= 0, i;

	for (i = 0; well && i < saved_count; i++)
		well = pwrite(memory, saved[i].bytes, saved[i].size, saved[i].at) == saved[i].size;
	if (memory >= 0)
		close(memory);
	return well;
}

static int start_origin(const char *folder, const char *program)
{
	const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
			     PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
	unsigned long child;
	int status, enters = 0;

	end_origin();
	mkdir(folder, 0755);
	if ((origin = fork()) == 0)
		become(folder, program);
	if (origin < 0 || !wait_stop(origin, &status))
		return 0;
	ptrace(PTRACE_SETOPTIONS, origin, NULL, options);
	do {
		enters = !enters;
		if (!to_call(origin, &child) || ptrace(PTRACE_GETREGS, origin, NULL, &origin_regs) < 0)
			return 0;
	} while (!enters || is_left_alone((long)origin_regs.orig_rax, &origin_regs));
	is_shared = shares && save_memory();
	return 1;
}

/* Makes a process that is stopped before its call make another one first; returns 0 if it ends. */
static int make_first(pid_t id, const struct user_regs_struct *regs, unsigned long *child)
{
	if (ptrace(PTRACE_SETREGS, id, NULL, regs) < 0 || !to_call(id, child))
		return 0;
	call_again(id, &origin_regs);
	return 1;
}

/* Makes the stopped program fork, and stops it again before the same call. Returns the child. */
static pid_t spawn(void)
{
	/* What outlives a program must not be seen by later variants: keys, shared memory, queues. */
	static const long isolate[][2] = { { SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING },
					   { SYS_unshare, CLONE_NEWIPC } };
	struct user_regs_struct regs = origin_regs;
	unsigned long child = 0, none;
	int status, i;

	/* The child is ours, not the program's, which could not collect it. */
	regs.orig_rax = SYS_clone;
	regs.rdi = CLONE_PARENT | SIGCHLD | (is_shared ? CLONE_VM : 0);
	regs.rsi = regs.rdx = regs.r10 = regs.r8 = 0;
	if (!make_first(origin, &regs, &child) || !to_call(origin, &child) || !child ||
	    !wait_stop(child, &status))
		return -1;
	call_again(child, &origin_regs);
	regs = origin_regs;
	regs.rsi = 0;
	for (i = 0; !is_shared && i < 2; i++) {
		regs.orig_rax = isolate[i][0];
		regs.rdi = isolate[i][1];
		if (!to_call(child, &none) || !make_first(child, &regs, &none))
			return -1;
	}
	return child;
}

/* Runs one variant; returns 0 if it cannot be started. */
static int run(void)
{
	long long most = shares || limit_ms > EXACT_MS ? limit_ms : EXACT_MS;
	long long most_pause = shares || pause_ms > EXACT_PAUSE_MS ? pause_ms : EXACT_PAUSE_MS;
	int status, i;
	struct task *task;
	pid_t id;

	task_count = task_total = changes = failed = is_cut_off = 0;
	calls = candidates = 0;
	digest = all_written = 0;
	choose_places();
	if ((id = spawn()) < 0)
		return 0;
	new_task(id);
	begun = last = now();
	tick(TICK_US);
	ptrace(PTRACE_SYSCALL, id, NULL, 0L);
	while (task_count) {
		id = waitpid(-1, &status, __WALL);
		is_cut_off = now() - begun > most || now() - last > most_pause || calls > CALLS;
		if (is_cut_off) {
			/* An end that was reported now is not reported again. */
			if (id > 0 && !WIFSTOPPED(status) && (task = task_of(id)))
				*task = tasks[--task_count];
			break;
		}
		if (id < 0)
			continue;
		longest = now() - last > longest ? now() - last : longest;
		last = now();
		if (id == origin) { /* killed by the program */
			origin = -1;
			break;
		}
		task = task_of(id);
		if (!WIFSTOPPED(status)) {
			if (task)
				gone(task, status);
		} else if (task) {
			stopped(task, status);
		} else if ((task = new_task(id))) {
			task->state = WAITS; /* its parent has not announced it yet */
		} else {
			kill(id, SIGKILL);
		}
	}
	tick(0);
	for (i = 0; i < task_count; i++)
		add(&tasks[i]);
	kill_all();
	return 1;
}

/* --- orders ---------------------------------------------------------------------------------- */

static int removes(const char *path, const struct stat *status, int kind, struct FTW *where)
{
	(void)status, (void)kind;
	if (where->level) /* all variants work in the folder itself */
		remove(path);
	return 0;
}

static int run_in(const char *folder, const char *program)
{
	int tries;

	for (tries = 0; tries < 2; tries++) {
		if (origin > 0 && run()) {
			if (is_shared && origin > 0 && !restore_memory())
				end_origin();
			nftw(folder, removes, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
			return 1;
		}
		if (!start_origin(folder, program))
			return 0;
	}
	return 0;
}

static int learn(const char *folder, const char *program)
{
	long long most = 0, begin;
	long most_calls = 0;
	int i;

	usual_calls = longest = 0;
	limit_ms = pause_ms = MOST_MS;
	learns = 1; /* the first run, which may be the last one */
	for (i = 0; i < LEARN_RUNS; i++) {
		begin = now();
		if (!run_in(folder, program))
			return 0;
		if (!learns) /* the first waited for the host */
			most = now() - begin > most ? now() - begin : most;
		learns = 0;
		most_calls = candidates > most_calls ? candidates : most_calls;
	}
	printf("learned %ld %lld %lld\n", most_calls, most, longest);
	return 1;
}

static int sweep(const char *folder, const char *program, u64 begin, long count, int fast)
{
	long i;

	if (fast != shares) { /* of the other kind */
		end_origin();
		shares = fast;
	}
	for (i = 0; i < count; i++) {
		seed = begin + i;
		if (!run_in(folder, program))
			return 0;
		printf("ran %llu %016llx%016llx %d %d %d\n", (unsigned long long)seed,
		       (unsigned long long)digest, (unsigned long long)all_written, changes, failed,
		       is_cut_off);
	}
	if (fast) /* with all that the variants have mapped */
		end_origin();
	printf("swept %llu\n", (unsigned long long)begin);
	return 1;
}

static void use(long calls_of_program, long long ms, long long longest_pause)
{
	usual_calls = calls_of_program;
	limit_ms = ms < LEAST_MS ? LEAST_MS : ms > MOST_MS ? MOST_MS : ms;
	pause_ms = longest_pause < LEAST_PAUSE_MS ? LEAST_PAUSE_MS : longest_pause;
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_handler = ring };
	unsigned long long begin;
	char order[256];
	long number, ms, gap;
	int well = 1;

	if (count != 4) {
		fprintf(stderr, "usage: vary FOLDER PROGRAM WORDS\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigaction(SIGALRM, &action, NULL); /* without SA_RESTART: it ends a wait */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	read_words(arguments[3]);
	while (well && fgets(order, sizeof(order), stdin)) {
		if (strcmp(order, "learn\n") == 0)
			well = learn(arguments[1], arguments[2]);
		else if (sscanf(order, "use %ld %ld %ld", &number, &ms, &gap) == 3)
			use(number, ms, gap);
		else if (sscanf(order, "sweep %llu %ld", &begin, &number) == 2)
			well = sweep(arguments[1], arguments[2], begin, number, 1);
		else if (sscanf(order, "exact %llu %ld", &begin, &number) == 2)
			well = sweep(arguments[1], arguments[2], begin, number, 0);
		else if (sscanf(order, "plain %llu %ld", &begin, &number) == 2) {
			mask = 0;
			well = sweep(arguments[1], arguments[2], begin, number, 0);
			mask = ~0;
		}
		else if (sscanf(order, "show %llu %ld", &begin, &number) == 2) {
			seed = begin;
			mask = number;
			shows = 1;
			if (shares)
				end_origin();
			shares = 0;
			well = run_in(arguments[1], arguments[2]);
			shows = 0;
			mask = ~0;
			printf("shown %llu %016llx%016llx %d\n", begin, (unsigned long long)digest,
			       (unsigned long long)all_written, is_cut_off);
		}
		fflush(stdout);
	}
	if (!well)
		printf("failed %d\n", errno);
	return !well;
}
