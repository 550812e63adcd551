// The real etcdutl: its commands are public, its main is not, so they are put together here.
package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
)

func main() {
	root := &cobra.Command{Use: "etcdutl", Short: "An administrative command line tool for etcd's files."}
	flags := root.PersistentFlags()
	flags.DurationVar(&etcdutl.FlockTimeout, "timeout", 10*time.Second, "time to wait for the lock of a database, 0 for ever")
	flags.StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple", "fields, json, protobuf, simple or table")
	root.AddCommand(etcdutl.NewDefragCommand(), etcdutl.NewSnapshotCommand(), etcdutl.NewHashKVCommand(),
		etcdutl.NewVersionCommand(), etcdutl.NewMigrateCommand())
	if root.Execute() != nil {
		os.Exit(1)
	}
}
