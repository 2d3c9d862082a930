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
 * Compiles on Linux 5.10 to 6.12 with gcc and clang.
 */
#include <linux/atomic.h>
#include <linux/bug.h>
#include <linux/compiler.h>
#include <linux/completion.h>
#include <linux/debug_locks.h>
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/version.h>
#include <trace/events/sched.h>

/* Not a power of two: what is written behind it lies in the slab's own padding. */
#define SIZE 123
#define LEAKS 8

static noinline void kgym_control_assert(void)
{
	WARN(1, "raised on purpose\n");
}

/* Through a pointer: the compiler shall not rely on it that a patched panic() does not return. */
static noinline void kgym_control_halt(void)
{
	void (*halt)(const char *format, ...) = panic;

	OPTIMIZER_HIDE_VAR(halt);
	halt("kgym_control");
}

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

static int kgym_control_sink;

static noinline void kgym_control_shift(void)
{
	int by = 33;

	OPTIMIZER_HIDE_VAR(by);
	WRITE_ONCE(kgym_control_sink, 1 << by);
}

static noinline void kgym_control_index(void)
{
	/* What is read stays within the struct, so that this is no fault of another kind. */
	static struct { int first[4], second[4]; } table;
	unsigned int at = 5;

	OPTIMIZER_HIDE_VAR(at);
	WRITE_ONCE(kgym_control_sink, table.first[at]);
}

static DEFINE_MUTEX(kgym_control_one);
static DEFINE_MUTEX(kgym_control_other);

/* In one order, then in the other: nothing hangs, but two tasks could. */
static noinline void kgym_control_locks(void)
{
	mutex_lock(&kgym_control_one);
	mutex_lock(&kgym_control_other);
	mutex_unlock(&kgym_control_other);
	mutex_unlock(&kgym_control_one);
	mutex_lock(&kgym_control_other);
	mutex_lock(&kgym_control_one);
	mutex_unlock(&kgym_control_one);
	mutex_unlock(&kgym_control_other);
}

/* In a task of its own: this one holds a lock, which would never be released. */
static noinline int kgym_control_load(void *address)
{
	OPTIMIZER_HIDE_VAR(address);
	return READ_ONCE(*(int *)address);
}

static int kgym_control_start(int (*function)(void *))
{
	return PTR_ERR_OR_ZERO(kthread_run(function, NULL, "kgym_control"));
}

static DECLARE_COMPLETION(kgym_control_over);

static noinline int kgym_control_sleep(void *unused)
{
	wait_for_completion(&kgym_control_over);
	return 0;
}

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

static bool kgym_control_watching;
static atomic_t kgym_control_ended, kgym_control_no_kasan, kgym_control_no_lockdep;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
static void kgym_control_on_exit(void *unused, struct task_struct *task, bool group_dead)
#else
static void kgym_control_on_exit(void *unused, struct task_struct *task)
#endif
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

static int kgym_control_watch(void)
{
	int failure = 0;

	if (!kgym_control_watching)
		failure = register_trace_sched_process_exit(kgym_control_on_exit, NULL);
	kgym_control_watching = !failure;
	return failure;
}

static int kgym_control_raise(const char *name, const struct kernel_param *param)
{
	if (sysfs_streq(name, "warning"))
		kgym_control_assert();
	else if (sysfs_streq(name, "panic"))
		kgym_control_halt();
	else if (sysfs_streq(name, "out_of_bounds"))
		return kgym_control_write();
	else if (sysfs_streq(name, "use_after_free"))
		return kgym_control_read();
	else if (sysfs_streq(name, "shift"))
		kgym_control_shift();
	else if (sysfs_streq(name, "bounds"))
		kgym_control_index();
	else if (sysfs_streq(name, "locks"))
		kgym_control_locks();
	else if (sysfs_streq(name, "oops"))
		return kgym_control_start(kgym_control_load);
	else if (sysfs_streq(name, "hang"))
		return kgym_control_start(kgym_control_sleep);
	else if (sysfs_streq(name, "unhang"))
		complete_all(&kgym_control_over);
	else if (sysfs_streq(name, "leak"))
		return kgym_control_lose();
	else if (sysfs_streq(name, "watch"))
		return kgym_control_watch();
	else
		return -EINVAL;
	return 0;
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

static const struct kernel_param_ops kgym_control_ops = {
	.set = kgym_control_raise,
	.get = kgym_control_tell,
};
module_param_cb(raise, &kgym_control_ops, NULL, 0600);
