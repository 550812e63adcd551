// drive is the one generator of load for etcd's API: each sub-command does one kind of work against one server.
//
//	drive puts -endpoint 127.0.0.1:2379 -clients 64 -seconds 5   ─►   one line of JSON, the generator's own processor time in it
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// figures is what a sub-command found.
type figures map[string]any

var commands = map[string]func() figures{
	"fill": fill, "puts": puts, "gets": gets, "txns": txns, "range": ranges, "pages": pages,
	"watch": watch, "slow": slow, "delete": deletes, "snapshot": snapshot,
}

var (
	endpoint    = flag.String("endpoint", "127.0.0.1:2379", "address of the server")
	clients     = flag.Int("clients", 64, "requests at a time")
	connections = flag.Int("connections", 8, "connections that they share")
	seconds     = flag.Float64("seconds", 5, "how long")
	prefix      = flag.String("prefix", "/bench/", "of the keys")
	keys        = flag.Int("keys", 10_000, "how many keys")
	keyLength   = flag.Int("key-length", 64, "bytes of a key")
	valueLength = flag.Int("value", 256, "bytes of a value")
	batch       = flag.Int("batch", 100, "puts in one transaction, while keys are filled in")
	versions    = flag.Int("versions", 1, "how many times each key is filled in")
	times       = flag.Int("times", 20, "repetitions")
	limit       = flag.Int64("limit", 0, "of a range; of a page")
	countOnly   = flag.Bool("count-only", false, "a range only counts")
	watchers    = flag.Int("watchers", 100, "how many watchers")
	rate        = flag.Float64("rate", 1000, "puts a second")
	perStream   = flag.Int("per-stream", 100, "watchers on a stream")
)

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		var all []string
		for name := range commands {
			all = append(all, name)
		}
		sort.Strings(all)
		fail("usage: drive %v [flags]", all)
	}
	command := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	flag.Parse()
	found := commands[command]()
	found["cpu_s"] = ownCpu()
	told, _ := json.Marshal(found)
	fmt.Println(string(told))
}

func fail(text string, values ...any) {
	fmt.Fprintf(os.Stderr, text+"\n", values...)
	os.Exit(2)
}

func ownCpu() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func dial() *grpc.ClientConn {
	conn, err := grpc.NewClient(*endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30), grpc.WaitForReady(true)))
	if err != nil {
		fail("%s: %v", *endpoint, err)
	}
	return conn
}

func dialAll() []pb.KVClient {
	var all []pb.KVClient
	for range max(1, min(*connections, *clients)) {
		all = append(all, pb.NewKVClient(dial()))
	}
	return all
}

// key is one of the keys, of the length that was asked for.
func key(number int) []byte {
	return fmt.Appendf(nil, "%s%0*d", *prefix, max(1, *keyLength-len(*prefix)), number)
}

// end is the end of all keys with the prefix.
func end(prefix string) []byte {
	made := []byte(prefix)
	made[len(made)-1]++
	return made
}

// latencies are times that requests took.
type latencies []time.Duration

func (l latencies) at(share float64) float64 {
	if len(l) == 0 {
		return 0
	}
	return float64(l[min(len(l)-1, int(share*float64(len(l))))].Nanoseconds()) / 1e6
}

func (l latencies) into(found figures) {
	sort.Slice(l, func(i, j int) bool { return l[i] < l[j] })
	found["p50_ms"], found["p99_ms"], found["max_ms"] = l.at(0.5), l.at(0.99), l.at(1)
}

// must ends the run where a request fails that the server should answer.
func must[T any](answer T, err error) T {
	if err != nil {
		fail("%v", err)
	}
	return answer
}

var background = context.Background()
