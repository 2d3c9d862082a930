package main

import "os"

func main() {
	if os.WriteFile("executor/defs.h", []byte("#define ENDING 7\n"), 0644) != nil {
		os.Exit(1)
	}
}
