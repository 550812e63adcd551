package main

import (
	"sort"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// replay is the store as the watch of all keys tells it, at one revision after the other.
type replay struct {
	run      *run
	state    map[string]*mvccpb.KeyValue
	revision int64
	told     map[int64]bool // revisions that were acknowledged and are in the history
}

// check replays the history: each event follows from the one before, was asked for by somebody, and is what was acknowledged;
// every read found what was there at its revision, and every other watch told the same.
func (h *history) check(r *run) {
	var all *follower
	for _, one := range h.watches {
		if one.prefix == "" {
			all = one
		}
	}
	if all == nil {
		r.say("nobody watched all keys")
		return
	}
	sort.SliceStable(h.reads, func(a, b int) bool { return h.reads[a].revision < h.reads[b].revision })
	store := &replay{run: r, state: map[string]*mvccpb.KeyValue{}, revision: 1, told: map[int64]bool{}}
	reads := h.reads
	for n, event := range all.events {
		for len(reads) > 0 && reads[0].revision < event.Kv.ModRevision {
			store.read(reads[0])
			reads = reads[1:]
		}
		store.take(h, event, n > 0 && all.events[n-1].Kv.ModRevision == event.Kv.ModRevision)
	}
	for _, one := range reads {
		store.read(one)
	}
	if store.revision != h.last {
		r.say("the history ends at %d instead of %d", store.revision, h.last)
	}
	for revision, one := range h.acks {
		if !store.told[revision] {
			r.say("lost: %s at %d was acknowledged", one.key, revision)
		}
	}
	for _, one := range h.watches {
		if one != all {
			h.compare(r, one, all.events)
		}
	}
}

// take is the next event; only the end of a lease changes several keys in one revision.
func (s *replay) take(h *history, event *clientv3.Event, isSame bool) {
	key, at, before := string(event.Kv.Key), event.Kv.ModRevision, s.state[string(event.Kv.Key)]
	isEnd := event.Type == clientv3.EventTypeDelete && before != nil && before.Lease != 0
	if at != s.revision+1 && !(isSame && isEnd) {
		s.run.say("after revision %d comes %d (%s)", s.revision, at, key)
	}
	s.revision = at
	if (before == nil) != (event.PrevKv == nil) || before != nil && line(before, string(before.Value)) != line(event.PrevKv, string(event.PrevKv.Value)) {
		s.run.say("%s at %d: before it was %v, and the event says %v", key, at, before, event.PrevKv)
	}
	done := write{key, string(event.Kv.Value), modOf(before)}
	if event.Type == clientv3.EventTypeDelete {
		delete(s.state, key)
	} else {
		s.put(key, event.Kv, before)
	}
	switch {
	case key == "compact_rev_key":
	case h.acks[at] == done:
		s.told[at] = true
	case h.acks[at].key != "":
		s.run.say("%s at %d: another was acknowledged: %s over %d", key, at, h.acks[at].key, h.acks[at].held)
	case isEnd:
	case h.tries[done] == 0:
		s.run.say("%s at %d over %d: nobody asked for it", key, at, done.held)
	default:
		s.run.count("done, the answer lost")
	}
}

func (s *replay) put(key string, kv, before *mvccpb.KeyValue) {
	create, version := kv.ModRevision, int64(1)
	if before != nil {
		create, version = before.CreateRevision, before.Version+1
	}
	if kv.CreateRevision != create || kv.Version != version {
		s.run.say("%s at %d: created %d, version %d instead of %d, %d", key, kv.ModRevision, kv.CreateRevision, kv.Version, create, version)
	}
	s.state[key] = kv
}

// read compares what was found with what there was.
func (s *replay) read(one read) {
	var count int64
	var all strings.Builder
	if one.isKey {
		if kv := s.state[one.prefix]; kv != nil {
			count = 1
			all.WriteString(line(kv, string(kv.Value)))
		}
	} else {
		var names []string
		for key := range s.state {
			if strings.HasPrefix(key, one.prefix) {
				names = append(names, key)
			}
		}
		sort.Strings(names)
		count = int64(len(names))
		for _, key := range names {
			all.WriteString(line(s.state[key], string(s.state[key].Value)))
		}
	}
	if count != one.count || one.sum != "counted" && one.sum != hash(all.String()) {
		s.run.say("%s at %d: %d found where there were %d, or others", one.prefix, one.revision, one.count, count)
	}
}

// compare holds a watch against the history: the same events, each once and in order.
func (h *history) compare(r *run, one *follower, all []*clientv3.Event) {
	told := one.events
	for _, event := range all {
		key, at := string(event.Kv.Key), event.Kv.ModRevision
		if at <= one.from || at > one.seen.Load() || !one.covers(key) {
			continue
		}
		if len(told) == 0 || told[0].Kv.ModRevision != at || string(told[0].Kv.Key) != key || told[0].Type != event.Type || string(told[0].Kv.Value) != string(event.Kv.Value) {
			r.say("gap: the watch of %s after %d does not tell %s at %d", one.prefix, one.from, key, at)
			return
		}
		told = told[1:]
	}
	if len(told) > 0 {
		r.say("the watch of %s after %d tells %s at %d, which is not in the history", one.prefix, one.from, told[0].Kv.Key, told[0].Kv.ModRevision)
	}
}
