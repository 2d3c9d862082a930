/* Stands in for syz-execprog: obeys its command line, and leaves the program to the executor. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In the form of Go's flag package. This one knows no -collide. */
static const char usage[] =
	"usage: execprog [flags] file-with-programs+\n"
	"  -enable string\n    \tenable only listed additional features (default \"none\")\n"
	"  -executor string\n    \tpath to executor binary\n"
	"  -output\n    \twrite programs and results to stdout\n"
	"  -procs int\n    \tnumber of parallel processes (default 1)\n"
	"  -repeat int\n    \trepeat that many times (0 for infinite loop)\n"
	"  -sandbox string\n    \tsandbox (none/setuid/namespace)\n"
	"  -threaded\n    \tuse threaded mode in executor (default true)\n"
	"  -vv int\n    \tverbosity\n"
	"available features for -enable and -disable:\n"
	"  close_fds - close fds after each program\n"
	"  tun - setup and use /dev/tun for packet injection\n";

/* As the real one, which leaves out calls that it does not know, and says nothing of it. */
static void print_program(const char *file)
{
	FILE *program = fopen(file, "r");
	char line[4096];

	fputs("2026/01/31 10:20:30 net packet injection    : /dev/net/tun does not exist\n", stderr);
	fputs("2026/01/31 10:20:30 executing program 0:\n", stderr);
	while (program && fgets(line, sizeof(line), program))
		if (line[0] != '#' && strncmp(line, "unknown", 7))
			fputs(line, stderr);
	fputs("2026/01/31 10:20:30 CALL 0: signal 0, coverage 0 errno 22\n", stderr);
}

int main(int count, char **words)
{
	char *executor = "", *file = "", *options[32] = { "syz-executor" };
	int i, used = 1, output = 0;

	for (i = 1; i < count && i < 30; i++) {
		if (!strcmp(words[i], "-help")) {
			fputs(usage, stderr);
			return 2;
		}
		if (!strncmp(words[i], "-executor=", 10))
			executor = words[i] + 10;
		else if (!strcmp(words[i], "-output=true"))
			output = 1;
		else if (words[i][0] == '-')
			options[used++] = words[i];
		else
			file = words[i];
	}
	if (!freopen(file, "r", stdin))
		return 1;
	if (output)
		print_program(file);
	execv(executor, options);
	perror(executor);
	return 1;
}
