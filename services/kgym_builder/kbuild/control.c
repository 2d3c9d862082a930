// SPDX-License-Identifier: GPL-2.0
/*
 * Raises known faults on purpose, so that whoever tries a patch sees whether the kernel still
 * tells of them. Part of every kernel that kGymSuite builds, patched or not; does nothing until
 * root writes the name of a fault to /sys/module/kgym_control/parameters/raise:
 *
 *     warning, panic, shift, bounds, locks    return when the fault was raised
 *     out_of_bounds, use_after_free           likewise; harmless where nothing detects them
 *     oops                                    a task that reads where nothing is
 *     hang, unhang                            a task that sleeps in state D, until `unhang`
 *     leak                                    memory that nothing refers to any more
 *     watch                                   from now on, count the tasks that end
 *
 * Reading it gives `ended N kasan_off N lockdep_off N debug_locks N`: tasks that ended since
 * `watch`, those for which a detector was still switched off at their end, as
 * kasan_disable_current() and lockdep_off() do, and whether lockdep is still at work.
 *
 * Compiled on Linux 5.10 to 7.3 with gcc and clang. A part that a kernel or a compiler does not
 * take is left out there: kGymSuite defines `kgym_control_without_PART` before the first line.
 */
#include <linux/bug.h>
#include <linux/compiler.h>
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/string.h>

/* Not a power of two: what is written behind it lies in the slab's own padding. */
#define SIZE 123
#define LEAKS 8

/* Through a pointer: the compiler shall not rely on it that a patched panic() does not return. */
static noinline int kgym_control_halt(void)
{
	void (*halt)(const char *format, ...) = panic;

	OPTIMIZER_HIDE_VAR(halt);
	halt("kgym_control");
	return 0;
}

static int __maybe_unused kgym_control_start(int (*function)(void *))
{
	return PTR_ERR_OR_ZERO(kthread_run(function, NULL, "kgym_control"));
}

#ifndef kgym_control_without_warning
static noinline int kgym_control_assert(void)
{
	WARN(1, "raised on purpose\n");
	return 0;
}
#endif

#ifndef kgym_control_without_kasan
static noinline int kgym_control_write(void)
{
	size_t at = SIZE;
	char *memory = kmalloc(SIZE, GFP_KERNEL);

	if (!memory)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(at);
	OPTIMIZER_HIDE_VAR(memory);
	WRITE_ONCE(memory[at], 1);
	kfree(memory);
	return 0;
}

static noinline int kgym_control_read(void)
{
	char *memory = kmalloc(SIZE, GFP_KERNEL), *same = memory;

	if (!memory)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(same);
	kfree(memory);
	(void)READ_ONCE(same[SIZE / 2]);
	return 0;
}
#endif

#ifndef kgym_control_without_ubsan
static int kgym_control_sink;

static noinline int kgym_control_shift(void)
{
	int by = 33;

	OPTIMIZER_HIDE_VAR(by);
	WRITE_ONCE(kgym_control_sink, 1 << by);
	return 0;
}

static noinline int kgym_control_index(void)
{
	/* What is read stays within the struct, so that this is no fault of another kind. */
	static struct { int first[4], second[4]; } table;
	unsigned int at = 5;

	OPTIMIZER_HIDE_VAR(at);
	WRITE_ONCE(kgym_control_sink, table.first[at]);
	return 0;
}
#endif

#ifndef kgym_control_without_lockdep
#include <linux/mutex.h>

static DEFINE_MUTEX(kgym_control_one);
static DEFINE_MUTEX(kgym_control_other);

/* In one order, then in the other: nothing hangs, but two tasks could. */
static noinline int kgym_control_locks(void)
{
	mutex_lock(&kgym_control_one);
	mutex_lock(&kgym_control_other);
	mutex_unlock(&kgym_control_other);
	mutex_unlock(&kgym_control_one);
	mutex_lock(&kgym_control_other);
	mutex_lock(&kgym_control_one);
	mutex_unlock(&kgym_control_one);
	mutex_unlock(&kgym_control_other);
	return 0;
}
#endif

#ifndef kgym_control_without_oops
/* In a task of its own: this one holds a lock, which would never be released. */
static noinline int kgym_control_load(void *address)
{
	OPTIMIZER_HIDE_VAR(address);
	return READ_ONCE(*(int *)address);
}

static int kgym_control_oops(void)
{
	return kgym_control_start(kgym_control_load);
}
#endif

#ifndef kgym_control_without_hung_task
#include <linux/completion.h>

static DECLARE_COMPLETION(kgym_control_over);

static noinline int kgym_control_sleep(void *unused)
{
	wait_for_completion(&kgym_control_over);
	return 0;
}

static int kgym_control_hang(void)
{
	return kgym_control_start(kgym_control_sleep);
}

static int kgym_control_unhang(void)
{
	complete_all(&kgym_control_over);
	return 0;
}
#endif

#ifndef kgym_control_without_leak
/* Several: an address may be left over somewhere, and a leak of that one is not seen. */
static noinline int kgym_control_lose(void)
{
	int i;

	for (i = 0; i < LEAKS; i++) {
		void *memory = kmalloc(SIZE, GFP_KERNEL);

		if (!memory)
			return -ENOMEM;
		memset(memory, 0xa5, SIZE);
		OPTIMIZER_HIDE_VAR(memory);
	}
	return 0;
}
#endif

#ifndef kgym_control_without_watch
#include <linux/atomic.h>
#include <linux/debug_locks.h>
#include <linux/sched.h>
#include <trace/events/sched.h>

static bool kgym_control_watching;
static atomic_t kgym_control_ended, kgym_control_no_kasan, kgym_control_no_lockdep;

static void kgym_control_on_exit(void *unused, struct task_struct *task)
{
	atomic_inc(&kgym_control_ended);
#if defined(CONFIG_KASAN_GENERIC) || defined(CONFIG_KASAN_SW_TAGS)
	if (task->kasan_depth)
		atomic_inc(&kgym_control_no_kasan);
#endif
#ifdef CONFIG_LOCKDEP
	if (task->lockdep_recursion)
		atomic_inc(&kgym_control_no_lockdep);
#endif
}

/* Since Linux 6.15. */
static void kgym_control_on_exit_of(void *unused, struct task_struct *task, bool group_dead)
{
	kgym_control_on_exit(unused, task);
}

/* By what the kernel asks for, not by its version: distributions backport. */
#define kgym_control_probe \
	_Generic(&register_trace_sched_process_exit, \
		 int (*)(void (*)(void *, struct task_struct *, bool), void *): \
			 kgym_control_on_exit_of, \
		 default: kgym_control_on_exit)

static int kgym_control_watch(void)
{
	int failure = 0;

	if (!kgym_control_watching)
		failure = register_trace_sched_process_exit(kgym_control_probe, NULL);
	kgym_control_watching = !failure;
	return failure;
}

static int kgym_control_tell(char *buffer, const struct kernel_param *param)
{
	int locks = 0;

#ifdef CONFIG_LOCKDEP
	locks = debug_locks;
#endif
	return scnprintf(buffer, 128, "ended %d kasan_off %d lockdep_off %d debug_locks %d\n",
			 atomic_read(&kgym_control_ended), atomic_read(&kgym_control_no_kasan),
			 atomic_read(&kgym_control_no_lockdep), locks);
}
#endif

static const struct {
	const char *name;
	int (*raise)(void);
} kgym_control_faults[] = {
	{ "panic", kgym_control_halt },
#ifndef kgym_control_without_warning
	{ "warning", kgym_control_assert },
#endif
#ifndef kgym_control_without_kasan
	{ "out_of_bounds", kgym_control_write },
	{ "use_after_free", kgym_control_read },
#endif
#ifndef kgym_control_without_ubsan
	{ "shift", kgym_control_shift },
	{ "bounds", kgym_control_index },
#endif
#ifndef kgym_control_without_lockdep
	{ "locks", kgym_control_locks },
#endif
#ifndef kgym_control_without_oops
	{ "oops", kgym_control_oops },
#endif
#ifndef kgym_control_without_hung_task
	{ "hang", kgym_control_hang },
	{ "unhang", kgym_control_unhang },
#endif
#ifndef kgym_control_without_leak
	{ "leak", kgym_control_lose },
#endif
#ifndef kgym_control_without_watch
	{ "watch", kgym_control_watch },
#endif
};

static int kgym_control_raise(const char *name, const struct kernel_param *param)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(kgym_control_faults); i++) {
		if (sysfs_streq(name, kgym_control_faults[i].name))
			return kgym_control_faults[i].raise();
	}
	return -EINVAL;
}

static const struct kernel_param_ops kgym_control_ops = {
	.set = kgym_control_raise,
#ifndef kgym_control_without_watch
	.get = kgym_control_tell,
#endif
};
module_param_cb(raise, &kgym_control_ops, NULL, 0600);
