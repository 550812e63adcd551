package main

import (
	"context"
	"math/rand"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// follower is one watch: what it told of the revisions after `from`, up to `seen`.
type follower struct {
	prefix string
	from   int64
	seen   atomic.Int64
	events []*clientv3.Event
	end    context.CancelFunc
	done   chan struct{}
}

// follow watches all that comes after a revision; an empty prefix stands for every key.
func (r *run) follow(ctx context.Context, prefix string, from int64) *follower {
	ctx, end := context.WithCancel(ctx)
	made := &follower{prefix: prefix, from: from, end: end, done: make(chan struct{})}
	made.seen.Store(from)
	key, options := prefix, []clientv3.OpOption{clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithRev(from + 1)}
	if prefix == "" {
		key, options = "\x00", append(options, clientv3.WithFromKey())
	} else {
		options = append(options, clientv3.WithPrefix())
	}
	answers := r.client.Watch(ctx, key, options...)
	go func() {
		defer close(made.done)
		for answer := range answers {
			if err := answer.Err(); err != nil {
				if ctx.Err() == nil {
					r.say("watch of '%s' after %d, at %d: %v", prefix, from, made.seen.Load(), err)
				}
				return
			}
			r.take(made, &answer)
		}
	}()
	return made
}

// take adds what was told; after a revision was told as reached, nothing up to it may come.
func (r *run) take(one *follower, answer *clientv3.WatchResponse) {
	if answer.IsProgressNotify() {
		r.count("progress told")
		raise(&one.seen, answer.Header.Revision)
		return
	}
	seen := one.seen.Load()
	for _, event := range answer.Events {
		if event.Kv.ModRevision <= seen {
			r.say("watch of '%s': an event of %d after %d was told", one.prefix, event.Kv.ModRevision, seen)
		}
		raise(&one.seen, event.Kv.ModRevision)
		if !event.IsCreate() && event.PrevKv == nil {
			r.say("watch of '%s': the event of %d does not say what was before", one.prefix, event.Kv.ModRevision)
		}
		if one.prefix == "" && event.Type == clientv3.EventTypeDelete && event.PrevKv != nil && event.PrevKv.Lease != 0 {
			r.log.ended(r, event.PrevKv)
		}
		event.Kv.Value = digest(event.Kv)
		if event.PrevKv != nil {
			event.PrevKv.Value = digest(event.PrevKv)
		}
	}
	r.count("responses of watches")
	one.events = append(one.events, answer.Events...)
}

func digest(kv *mvccpb.KeyValue) []byte {
	if len(kv.Value) == 0 {
		return nil
	}
	return []byte(hash(string(kv.Value)))
}

// reflect lists a kind and watches what comes after, again and again; the last watch stays open.
func (r *run) reflect(ctx, watching context.Context, prefix string) *follower {
	for {
		from := r.pages(prefix)
		if from == 0 {
			if ctx.Err() != nil {
				return nil
			}
			continue
		}
		one := r.follow(watching, prefix, from)
		r.count("watches")
		until := time.Now().Add(time.Duration(2+rand.Intn(12)) * time.Second)
		for ctx.Err() == nil && time.Now().Before(until) {
			_ = r.client.RequestProgress(watching)
			time.Sleep(time.Second)
		}
		if ctx.Err() != nil {
			return one
		}
		r.finish(one)
	}
}

// reach waits until a watch has come to a revision, asking for progress as a consistent read from a cache does.
func (r *run) reach(ctx context.Context, one *follower, revision int64) {
	limit := time.Now().Add(15 * time.Second)
	for one.seen.Load() < revision {
		if time.Now().After(limit) {
			r.say("watch of '%s' stays at %d of %d", one.prefix, one.seen.Load(), revision)
			return
		}
		_ = r.client.RequestProgress(ctx)
		time.Sleep(100 * time.Millisecond)
	}
}

// finish ends a watch; what it told is compared with the history at the end.
func (r *run) finish(one *follower) {
	one.end()
	<-one.done
	r.log.watched(one)
}

func (f *follower) covers(key string) bool { return strings.HasPrefix(key, f.prefix) }

func raise(held *atomic.Int64, value int64) {
	for {
		old := held.Load()
		if old >= value || held.CompareAndSwap(old, value) {
			return
		}
	}
}
