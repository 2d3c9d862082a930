
static int one(int a)
{
    return a;
}
#ifdef CONFIG_X
static void __init two(void) { }
#endif
SYSCALL_DEFINE2(three, int, a, int, b)
{
    return a;
}
static const char *four(void)
{
    return "";
}
struct ops ops = { .one = one };
