/* As include/linux/compiler_types.h, init.h, syscalls.h and filter.h, for user space. */
#include <stdarg.h>
#include <stdio.h>
#define __init __attribute__((section(".init.text")))
#define noinstr __attribute__((__noinline__, section(".noinstr.text")))
#define notrace __attribute__((no_instrument_function))
#undef __always_inline
#define __always_inline inline __attribute__((__always_inline__))
#define noinline __attribute__((__noinline__))
#define __must_check __attribute__((warn_unused_result))
#define __printf(a, b) __attribute__((format(printf, a, b)))
#define __acquires(x)
#define __releases(x)
#define __must_hold(x)
#define __user
#define __rcu
#define __odd_mark
#define asmlinkage
#define EXPORT_SYMBOL(x) extern int exported_##x;
#define SYSCALL_DEFINE2(name, t1, a1, t2, a2) \
	static long __do_sys_##name(t1 a1, t2 a2); \
	long sys_##name(long a1, long a2) { return __do_sys_##name((t1)a1, (t2)a2); } \
	static long __do_sys_##name(t1 a1, t2 a2)
#define COMPAT_SYSCALL_DEFINE2(name, t1, a1, t2, a2) SYSCALL_DEFINE2(compat_##name, t1, a1, t2, a2)
#define SYSCALL_DEFINE0(name) long sys_##name(void)
#define BPF_CALL_1(name, t1, a1) \
	static long ____##name(t1 a1); \
	long name(long a1) { return ____##name((t1)a1); } \
	static long ____##name(t1 a1)
#define SHOW(name) int name##_show(void)
