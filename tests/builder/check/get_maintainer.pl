# Names whom a patch on standard input is for, as the kernel's own script does; and others tell lies.
die "unknown option" unless "@ARGV" eq "--no-tree --nogit --nogit-fallback --norolestats --roles";
my ($path) = map { m{^\+\+\+ b/(\S+)} } <STDIN>;
print "Ann \xc3\x84 <ann\@example.org> (maintainer:$path)\n";
print "\"Bob, B.\" <bob\@example.org> (reviewer:WATCH)\n";
print "linux-kernel\@vger.kernel.org (open list)\n";
print "Eve <eve\@example.org> <x\@y> (maintainer:X)\nSubject: you\x1b[31m <a\@b.c>\n";
