package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// quiet is how long nothing may come before a stream counts as read: etcd looks after those that are behind every 100 ms.
const quiet = 260 * time.Millisecond

// stream is one open stream of watchers, and what it brought so far.
type stream struct {
	pb.Watch_WatchClient
	cancel context.CancelFunc
	come   chan *pb.WatchResponse
	ended  string
	events map[int64][]string // of each watcher, in the order in which they came
	told   []told             // what is no event
	wrong  []string
	// Watchers that ended by compaction: etcd keeps their numbers taken, and answers no request for progress from then on.
	compacted map[int64]bool
}

type told struct {
	id   int64
	text string
}

func (s *server) watch(user string) *stream {
	ctx, cancel := s.context(user)
	opened, err := pb.NewWatchClient(s.conn).Watch(ctx)
	if err != nil {
		fail("%s: a stream of watchers: %v", s.name, err)
	}
	made := &stream{Watch_WatchClient: opened, cancel: cancel, come: make(chan *pb.WatchResponse, 10_000), events: map[int64][]string{}, compacted: map[int64]bool{}}
	go func() {
		defer close(made.come)
		for {
			response, err := opened.Recv()
			if err != nil {
				return
			}
			made.come <- response
		}
	}()
	return made
}

func (s *stream) keep(response *pb.WatchResponse) {
	at := response.GetHeader().GetRevision()
	if len(response.Events) == 0 {
		s.told = append(s.told, told{response.WatchId, textOf(response.ProtoReflect())})
		if response.CompactRevision != 0 {
			s.compacted[response.WatchId] = true
		}
		return
	}
	for _, event := range response.Events {
		s.events[response.WatchId] = append(s.events[response.WatchId], textOf(event.ProtoReflect()))
		if event.Kv.ModRevision > at {
			s.wrong = append(s.wrong, fmt.Sprintf("an event of %d in a response of %d", event.Kv.ModRevision, at))
		}
	}
}

// next is one response, whatever comes before it having been kept; false after a second of nothing.
func (s *stream) next(isIt func(*pb.WatchResponse) bool, patience time.Duration) bool {
	for {
		select {
		case response, ok := <-s.come:
			if !ok {
				s.ended = "ended"
				return false
			}
			s.keep(response)
			if isIt(response) {
				return true
			}
		case <-time.After(patience):
			return false
		}
	}
}

func (s *stream) text() string {
	// What is told of one watcher has an order, what is told of several has none.
	sort.SliceStable(s.told, func(i, j int) bool { return s.told[i].id < s.told[j].id })
	var all []string
	for _, it := range s.told {
		all = append(all, "\n    "+it.text)
	}
	for id := range int64(40) {
		if events := s.events[id]; len(events) > 0 {
			all = append(all, fmt.Sprintf("\n    events of %d: %s", id, strings.Join(events, " ")))
		}
	}
	return strings.Join(all, "") + s.ended + strings.Join(s.wrong, "; ")
}

func (d *differ) createRequest() *pb.WatchCreateRequest {
	asked := &pb.WatchCreateRequest{PrevKv: d.chance(2), Fragment: d.chance(4), ProgressNotify: d.chance(4)}
	asked.Key, asked.RangeEnd = d.span()
	if d.chance(3) {
		asked.WatchId = int64(d.rnd.Intn(5))
	}
	asked.StartRevision = d.revision_()
	if asked.StartRevision > d.newest+1 && d.chance(2) {
		asked.StartRevision = d.newest + int64(d.rnd.Intn(6))
	}
	if d.chance(4) {
		asked.Filters = append(asked.Filters, pb.WatchCreateRequest_FilterType(d.rnd.Intn(2)))
	}
	if d.chance(12) {
		asked.Filters = append(asked.Filters, pb.WatchCreateRequest_FilterType(d.rnd.Intn(3)))
	}
	return asked
}

// watch is one life of a stream: watchers are made and cancelled among changes, then all is read and compared.
func (d *differ) watch() {
	streams := []*stream{d.etcd.watch(d.who), d.peer.watch(d.who)}
	by := d.who
	d.who = d.root() // who makes the changes
	defer streams[0].cancel()
	defer streams[1].cancel()
	var asked []string
	send := func(request *pb.WatchRequest) {
		asked = append(asked, textOf(request.ProtoReflect()))
		for _, stream := range streams {
			_ = stream.Send(request)
		}
	}
	create := func() {
		request := d.createRequest()
		if streams[0].compacted[request.WatchId] || request.StartRevision < d.compacted && request.StartRevision > 0 {
			request.WatchId = 0
		}
		send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}})
		for _, stream := range streams {
			stream.next(func(response *pb.WatchResponse) bool { return response.Created }, 3*time.Second)
			if request.StartRevision > 0 && request.StartRevision < d.compacted {
				stream.next(func(response *pb.WatchResponse) bool { return response.CompactRevision != 0 }, quiet)
			}
		}
		d.out.Requests++
		d.out.Kinds["WatchCreate"]++
	}
	for range 1 + d.rnd.Intn(3) {
		create()
	}
	for range d.rnd.Intn(12) {
		switch d.rnd.Intn(10) {
		case 0:
			create()
		case 1:
			cancel := &pb.WatchCancelRequest{WatchId: int64(d.rnd.Intn(5))}
			for _, stream := range streams {
				stream.next(func(*pb.WatchResponse) bool { return false }, quiet)
			}
			if streams[0].compacted[cancel.WatchId] {
				continue
			}
			send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}})
			for _, stream := range streams {
				stream.next(func(response *pb.WatchResponse) bool { return response.Canceled }, quiet)
			}
			d.out.Kinds["WatchCancel"]++
		default:
			d.write()
		}
	}
	for _, stream := range streams {
		stream.next(func(*pb.WatchResponse) bool { return false }, quiet)
	}
	if d.chance(2) && len(streams[0].compacted) == 0 {
		send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		for _, stream := range streams {
			stream.next(func(response *pb.WatchResponse) bool { return response.WatchId == -1 }, quiet)
		}
		d.out.Kinds["WatchProgress"]++
	}
	d.compare("Watch of "+by+" "+strings.Join(asked, ", "), streams[0].text(), streams[1].text())
}

// write is a change, as events come from.
func (d *differ) write() {
	switch d.rnd.Intn(4) {
	case 0:
		d.both(call{"DeleteRange", pb.KV_DeleteRange_FullMethodName, d.deleteRequest(), &pb.DeleteRangeResponse{}, ""})
	case 1:
		d.transaction()
	default:
		d.both(call{"Put", pb.KV_Put_FullMethodName, d.putRequest(), &pb.PutResponse{}, ""})
	}
}
