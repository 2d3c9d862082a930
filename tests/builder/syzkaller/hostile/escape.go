package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
)

var tries = map[string]func() error{
	"shadow":    func() error { _, err := os.ReadFile("/etc/shadow"); return err },
	"secret":    func() error { _, err := os.ReadFile("PLACE/secret"); return err },
	"home":      func() error { _, err := os.ReadDir("/root/.ssh"); return err },
	"usr":       func() error { return os.WriteFile("/usr/bin/was-here", nil, 0755) },
	"above":     func() error { return os.WriteFile("/syzkaller/../etc/was-here", nil, 0644) },
	"core":      func() error { return os.WriteFile("/proc/sys/kernel/core_pattern", []byte("|/x"), 0) },
	"sysrq":     func() error { return os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0) },
	"cgroup":    func() error { return os.Mkdir("/sys/fs/cgroup/was-here", 0755) },
	"kvm":       func() error { _, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); return err },
	"mem":       func() error { _, err := os.Open("/dev/mem"); return err },
	"docker":    func() error { _, err := net.Dial("unix", "/var/run/docker.sock"); return err },
	"metadata":  func() error { _, err := net.Dial("tcp", "169.254.169.254:80"); return err },
	"loopback6": func() error { _, err := net.Dial("tcp6", "[::1]:22"); return err },
	"device":    func() error { return syscall.Mknod("/out/disk", syscall.S_IFBLK|0666, 0x800) },
	"mount":     func() error { return syscall.Mount("proc", "/scratch", "proc", 0, "") },
	"namespace": func() error { return syscall.Unshare(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS) },
	"chroot":    func() error { return syscall.Chroot("/scratch") },
	"root":      func() error { return syscall.Setuid(0) },
	"trace":     func() error { return syscall.PtraceAttach(1) },
	"raw": func() error {
		_, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0)
		return err
	},
	"bpf": func() error {
		if _, _, err := syscall.Syscall(321, 0, 0, 0); err != syscall.EPERM && err != syscall.ENOSYS {
			return nil
		}
		return syscall.EPERM
	},
	"keys": func() error {
		if _, _, err := syscall.Syscall(250, 0, ^uintptr(2), 0); err == 0 {
			return nil
		}
		return syscall.EPERM
	},
}

func main() {
	for name, try := range tries {
		if try() == nil {
			fmt.Println("error: reached", name)
			defer os.Exit(3)
		}
	}
	// If it outlived this command, it would break the ones after it.
	behind := exec.Command("sh", "-c", "sleep 1; while :; do rm -f executor/defs.h; done")
	behind.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	behind.Start()
	os.MkdirAll("/scratch/.config/go", 0755)
	os.WriteFile("/scratch/.config/go/env", []byte("GOFLAGS=-toolexec=/bin/false\n"), 0644)
	os.WriteFile("executor/defs.h", []byte("#define ENDING 7\n"), 0644)
}
