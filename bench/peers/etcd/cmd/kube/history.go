package main

import (
	"crypto/sha256"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// write is an attempt, or what was acknowledged: a value's hash, empty for a delete, over a revision of the key.
type write struct {
	key, value string
	held       int64
}

// read is what was found of a prefix, or of one key: how many and, unless only counted, a hash of all.
type read struct {
	revision int64
	prefix   string
	isKey    bool
	count    int64
	sum      string
}

// history is what clients did and saw; the watch of all keys tells what has happened.
type history struct {
	mutex   sync.Mutex
	tries   map[write]int
	acks    map[int64]write
	reads   []read
	watches []*follower
	leases  map[int64]time.Time
	last    int64
}

func newHistory() *history {
	return &history{tries: map[write]int{}, acks: map[int64]write{}, leases: map[int64]time.Time{}}
}

func hash(value string) string {
	if value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(value))
	return string(sum[:12])
}

func modOf(kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}

// line is all of a key, its value as a hash.
func line(kv *mvccpb.KeyValue, value string) string {
	return fmt.Sprintf("%s %d %d %d %d %x\n", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, value)
}

func (h *history) tried(key, value string, held int64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.tries[write{key, hash(value), held}]++
}

func (h *history) did(revision int64, key, value string, held int64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.acks[revision] = write{key, hash(value), held}
}

func (h *history) granted(lease clientv3.LeaseID, began time.Time) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.leases[int64(lease)] = began
}

// ended says of a key that has gone before its lease could end.
func (h *history) ended(r *run, kv *mvccpb.KeyValue) {
	h.mutex.Lock()
	began, isKnown := h.leases[kv.Lease]
	h.mutex.Unlock()
	if !isKnown || time.Since(began) < ttl*time.Second {
		r.say("%s is gone %v after its lease was asked for", kv.Key, time.Since(began))
	}
	r.count("ends of events")
}

func (h *history) add(one read) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.reads = append(h.reads, one)
}

func (h *history) found(revision int64, key string, kv *mvccpb.KeyValue) {
	one := read{revision: revision, prefix: key, isKey: true}
	if kv != nil {
		one.count, one.sum = 1, hash(line(kv, hash(string(kv.Value))))
	}
	h.add(one)
}

func (h *history) listed(revision int64, prefix string, kvs []*mvccpb.KeyValue) {
	var all strings.Builder
	for _, kv := range kvs {
		all.WriteString(line(kv, hash(string(kv.Value))))
	}
	h.add(read{revision: revision, prefix: prefix, count: int64(len(kvs)), sum: hash(all.String())})
}

func (h *history) counted(revision int64, prefix string, count int64) {
	h.add(read{revision: revision, prefix: prefix, count: count, sum: "counted"})
}

func (h *history) watched(one *follower) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.watches = append(h.watches, one)
}

func sorted[V any](held map[string]V) []string {
	names := make([]string, 0, len(held))
	for name := range held {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
