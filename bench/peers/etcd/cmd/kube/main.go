// kube asks a server for what Kubernetes' API server asks etcd for, kills it with -9 now and then, and checks every answer:
//
//	kube -seconds 120 -kill-every 10 -- etcd --data-dir=... --listen-client-urls=http://127.0.0.1:2379 ...
//
//	writers ─┐                         ┌─► what was acknowledged, found, refused ─┐
//	events  ─┼─► server (-9, start) ───┤                                          ├─► check: one history, nothing lost, no gap
//	lists   ─┤                         └─► one watch of all keys: the history ────┘
//	watches, compactors
//
// The server must be empty. Every mistake is a line, and the status is 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	every = "/registry/"
	ttl   = 10              // seconds that an event is kept
	grace = 5 * time.Second // after a start, until all clients have their connections again
)

var (
	endpoint  = flag.String("endpoint", "127.0.0.1:2379", "address of the server")
	seconds   = flag.Float64("seconds", 120, "how long")
	killEvery = flag.Float64("kill-every", 10, "seconds between two kills, about; 0: none")
	writers   = flag.Int("writers", 8, "who create, update and delete")
	objects   = flag.Int("objects", 600, "of each kind")
	compact   = flag.Duration("compact", 4*time.Second, "between two compactions")
	kinds     = []string{"pods", "configmaps", "leases"}
)

// run is what all share.
type run struct {
	client *kubernetes.Client
	server *server
	log    *history
	floor  atomic.Int64 // the newest revision that anybody was told
	gone   atomic.Int64 // the highest revision that a compaction was asked for
	sealed atomic.Int64 // and the highest of which it was acknowledged
	mutex  sync.Mutex
	counts map[string]int
	wrong  []string
}

func main() {
	flag.Parse()
	server, err := start(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer server.kill()
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{*endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		server.kill()
		os.Exit(2)
	}
	one := &run{client: client, server: server, log: newHistory(), counts: map[string]int{}}
	one.live()
	one.log.check(one)
	one.report()
	server.kill()
	if len(one.wrong) > 0 {
		os.Exit(1)
	}
}

// live runs everybody for the time given, then waits until the watches and the end of the leases have caught up.
func (r *run) live() {
	background, end := context.WithCancel(context.Background())
	defer end()
	watching := clientv3.WithRequireLeader(background)
	all := r.follow(watching, "", 0)
	working, stop := context.WithTimeout(background, time.Duration(*seconds*float64(time.Second)))
	defer stop()
	var group sync.WaitGroup
	for n := range *writers {
		group.Go(func() { r.write(working, n) })
	}
	group.Go(func() { r.events(working) })
	for n := range 2 {
		group.Go(func() { r.list(working, n) })
		group.Go(func() { r.compactor(working) })
	}
	spans := make([]*follower, len(kinds))
	for n, kind := range kinds {
		group.Go(func() { spans[n] = r.reflect(working, watching, every+kind+"/") })
	}
	r.kills(working)
	group.Wait()
	r.expire(background)
	answer, err := r.client.Kubernetes.Get(background, every+"health", kubernetes.GetOptions{})
	if err != nil {
		r.say("the last read: %v", err)
		return
	}
	for _, one := range append(spans, all) {
		if one != nil {
			r.reach(watching, one, answer.Revision)
		}
	}
	r.log.last = answer.Revision
	for _, one := range append(spans, all) {
		if one != nil {
			r.finish(one)
		}
	}
}

func (r *run) kills(ctx context.Context) {
	for *killEvery > 0 {
		wait := time.Duration(*killEvery * (0.5 + rand.Float64()) * float64(time.Second))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := r.server.again(); err != nil {
			r.say("restart: %v", err)
			return
		}
		r.count("kills")
	}
}

// expire waits until no event is left: every lease has ended, and none is alive for long after its time.
func (r *run) expire(ctx context.Context) {
	limit := time.Now().Add(ttl*time.Second*2 + grace)
	for {
		left, err := r.client.Kubernetes.Count(ctx, every+"events/", kubernetes.CountOptions{})
		if err == nil && left == 0 {
			return
		}
		if time.Now().After(limit) {
			r.say("%d events outlive their leases: %v", left, err)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (r *run) say(text string, values ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf(text, values...))
}

func (r *run) count(what string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.counts[what]++
}

// saw takes the revision of an answer: it may not be older than what anybody was told before the question.
func (r *run) saw(what string, before, revision int64) {
	if revision < before {
		r.say("%s: revision %d after %d was told", what, revision, before)
	}
	for {
		held := r.floor.Load()
		if held >= revision || r.floor.CompareAndSwap(held, revision) {
			return
		}
	}
}

// failed counts an error, and says those that etcd would not give.
func (r *run) failed(what string, began time.Time, err error) {
	code := status.Code(err)
	var told rpctypes.EtcdError
	if errors.As(err, &told) {
		code = told.Code()
	}
	isBroken := code == codes.Unavailable || code == codes.Canceled || code == codes.DeadlineExceeded ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if isBroken && r.server.wasDown(began) {
		r.count("answers lost by kills")
		time.Sleep(50 * time.Millisecond)
		return
	}
	r.say("%s: %v", what, err)
	time.Sleep(50 * time.Millisecond)
}

func (r *run) report() {
	for _, what := range sorted(r.counts) {
		fmt.Printf("%-28s %9d\n", what, r.counts[what])
	}
	fmt.Printf("%-28s %9d\n", "revisions", r.log.last)
	for n, text := range r.wrong {
		if n == 40 {
			fmt.Printf("... and %d more\n", len(r.wrong)-n)
			break
		}
		fmt.Println("wrong:", text)
	}
	if len(r.wrong) == 0 {
		fmt.Println("ok")
	}
}
