/* Stands in for syz-execprog: obeys its command line, and leaves the program to the executor. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In the form of Go's flag package. This one knows no -collide. */
static const char usage[] =
	"usage: execprog [flags] file-with-programs+\n"
	"  -executor string\n    \tpath to executor binary\n"
	"  -procs int\n    \tnumber of parallel processes (default 1)\n"
	"  -repeat int\n    \trepeat that many times (0 for infinite loop)\n"
	"  -sandbox string\n    \tsandbox (none/setuid/namespace)\n"
	"  -threaded\n    \tuse threaded mode in executor (default true)\n";

int main(int count, char **words)
{
	char *executor = "", *file = "", *options[32] = { "syz-executor" };
	int i, used = 1;

	for (i = 1; i < count && i < 30; i++) {
		if (!strcmp(words[i], "-help")) {
			fputs(usage, stderr);
			return 2;
		}
		if (!strncmp(words[i], "-executor=", 10))
			executor = words[i] + 10;
		else if (words[i][0] == '-')
			options[used++] = words[i];
		else
			file = words[i];
	}
	if (!freopen(file, "r", stdin))
		return 1;
	execv(executor, options);
	perror(executor);
	return 1;
}
