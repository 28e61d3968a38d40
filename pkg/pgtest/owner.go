package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// serverOwner is the user that a server runs as: this process's, but for root, whom Postgres refuses.
type serverOwner struct {
	name       string
	credential *syscall.Credential // nil for this process's user
}

func findServerOwner() (serverOwner, error) {
	if os.Geteuid() != 0 {
		return serverOwner{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return serverOwner{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return serverOwner{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		return serverOwner{name: name, credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return serverOwner{}, errors.New("find a user for Postgres: it refuses root, and there is neither postgres nor nobody")
}

// own makes cmd a process of the owner's, away from this one's terminal, directory and Postgres variables.
func (o serverOwner) own(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: o.credential}
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C"}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_ALL=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
}

func (o serverOwner) give(path string) error {
	if o.credential == nil {
		return nil
	}
	return os.Lchown(path, int(o.credential.Uid), int(o.credential.Gid))
}

func (o serverOwner) giveTree(root string) error {
	if o.credential == nil {
		return nil
	}
	return filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, o.give(path))
	})
}

// makeServerDir returns dir, or a new temporary directory, as one that only the owner may enter.
func makeServerDir(dir string, owner serverOwner) (_ string, err error) {
	if dir == "" {
		dir, err = os.MkdirTemp(temporaryRoot(), "evalonce-postgres-")
	} else if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("make Postgres directory: %w", err)
	}
	if err := owner.give(dir); err != nil {
		return "", fmt.Errorf("make Postgres directory: %w", err)
	}
	return dir, nil
}

// Room for some databases; a container's /dev/shm has 64 MB unless told otherwise.
const enoughMemory = 1 << 30

// temporaryRoot is a directory in memory where there is one that is large enough. The supervisor, which may be
// another user, removes what it owns in it.
func temporaryRoot() string {
	const shm = "/dev/shm"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(shm, &fs); err == nil && fs.Bavail*uint64(fs.Bsize) >= enoughMemory {
		if probe, err := os.MkdirTemp(shm, "evalonce-probe-"); err == nil && os.Remove(probe) == nil {
			return shm
		}
	}
	return os.TempDir()
}
