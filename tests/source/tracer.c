extern int printf(const char *, ...);
extern int vprintf(const char *, __builtin_va_list);
int __trace_bprintk(unsigned long ip, const char *fmt, ...)
{
	__builtin_va_list args;
	__builtin_va_start(args, fmt);
	vprintf(fmt, args);
	__builtin_va_end(args);
	return ip != 0;
}
