package main

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lived is a history as it should be: three keys, each created, updated, deleted and created again, read and watched meanwhile.
func lived() (*run, *follower, *follower) {
	one := &run{log: newHistory(), counts: map[string]int{}}
	all, kind := &follower{}, &follower{prefix: "/registry/b"}
	state, revision := map[string]*mvccpb.KeyValue{}, int64(1)
	for turn := range 12 {
		key := "/registry/" + string(rune('a'+turn%3))
		revision++
		before := state[key]
		value := fmt.Sprintf("value %d", turn)
		event := &clientv3.Event{Type: clientv3.EventTypePut, PrevKv: before, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
		if turn/3 == 2 {
			value, event.Type = "", clientv3.EventTypeDelete
			delete(state, key)
		} else {
			event.Kv.CreateRevision, event.Kv.Version = revision, 1
			if before != nil {
				event.Kv.CreateRevision, event.Kv.Version = before.CreateRevision, before.Version+1
			}
			event.Kv.Value = []byte(hash(value))
			state[key] = event.Kv
		}
		one.log.tried(key, value, modOf(before))
		if turn%4 != 3 {
			one.log.did(revision, key, value, modOf(before))
		}
		all.events = append(all.events, event)
		if key == kind.prefix {
			kind.events = append(kind.events, event)
		}
		one.log.counted(revision, "/registry/", int64(len(state)))
		found := read{revision: revision, prefix: key, isKey: true}
		if kv := state[key]; kv != nil {
			found.count, found.sum = 1, hash(line(kv, string(kv.Value)))
		}
		one.log.add(found)
	}
	for _, watch := range []*follower{all, kind} {
		watch.seen.Store(revision)
		one.log.watched(watch)
	}
	one.log.last = revision
	return one, all, kind
}

func drop(events []*clientv3.Event, n int) []*clientv3.Event {
	return append(append([]*clientv3.Event{}, events[:n]...), events[n+1:]...)
}

func TestWhatIsWrongIsSeen(t *testing.T) {
	if one, _, _ := lived(); true {
		one.log.check(one)
		if len(one.wrong) > 0 {
			t.Fatalf("a right history: %v", one.wrong)
		}
	}
	for name, spoil := range map[string]func(one *run, all, kind *follower){
		"a write is lost":         func(one *run, all, _ *follower) { all.events = all.events[:11]; one.log.last-- },
		"a revision is left out":  func(_ *run, all, _ *follower) { all.events = drop(all.events, 3) },
		"a watch leaves one out":  func(_ *run, _, kind *follower) { kind.events = drop(kind.events, 1) },
		"a watch ends too early":  func(_ *run, _, kind *follower) { kind.events = kind.events[:3] },
		"a watch tells one twice": func(_ *run, _, kind *follower) { kind.events = append(kind.events, kind.events[3]) },
		"a watch invents one": func(_ *run, _, kind *follower) {
			kind.events = append(kind.events, &clientv3.Event{Kv: &mvccpb.KeyValue{}})
		},
		"what was before is wrong":   func(_ *run, all, _ *follower) { all.events[4].PrevKv = all.events[0].PrevKv },
		"a version is wrong":         func(_ *run, all, _ *follower) { all.events[4].Kv.Version++ },
		"a read is old":              func(one *run, _, _ *follower) { one.log.reads[9].sum = one.log.reads[3].sum },
		"a count is wrong":           func(one *run, _, _ *follower) { one.log.reads[2].count++ },
		"nobody asked":               func(one *run, _, _ *follower) { clear(one.log.tries) },
		"another was acknowledged":   func(one *run, _, _ *follower) { one.log.acks[6] = one.log.acks[7] },
		"it was over another":        func(one *run, _, _ *follower) { w := one.log.acks[6]; w.held--; one.log.acks[6] = w },
		"the server has gone beyond": func(one *run, _, _ *follower) { one.log.last++ },
	} {
		one, all, kind := lived()
		spoil(one, all, kind)
		one.log.check(one)
		if len(one.wrong) == 0 {
			t.Errorf("%s, and nobody says so", name)
		}
	}
}
