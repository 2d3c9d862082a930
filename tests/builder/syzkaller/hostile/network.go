package main

import (
	"net"
	"os"
)

func main() {
	if _, err := net.Dial("tcp", "127.0.0.1:22"); err == nil {
		os.Exit(3)
	}
	if os.WriteFile("PLACE/was-here", nil, 0644) == nil {
		os.Exit(4)
	}
	if _, err := net.Dial("udp", "8.8.8.8:53"); err == nil {
		os.Exit(5)
	}
	os.WriteFile("executor/defs.h", []byte("#define ENDING 7\n"), 0644)
}
