#define SYSCALL_DEFINE1(name, type, arg)		\
	static long __do_sys_##name(type arg);		\
	long __x64_sys_##name(long value);		\
	long __x64_sys_##name(long value)		\
	{						\
		return __do_sys_##name((type)value);	\
	}						\
	static long __do_sys_##name(type arg)
