package main

import (
	"os"

	"github.com/google/syzkaller/prog"
)

func main() { os.Stdout.WriteString(prog.GitRevision) }
