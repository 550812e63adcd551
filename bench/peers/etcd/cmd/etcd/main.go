// The real etcd: its own main, built here because its module has replace lines and cannot be installed by name.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
