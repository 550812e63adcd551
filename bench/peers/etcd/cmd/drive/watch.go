package main

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// open begins a stream with so many watchers of the prefix, and waits until all of them stand.
func open(conn *grpc.ClientConn, count int) pb.Watch_WatchClient {
	stream := must(pb.NewWatchClient(conn).Watch(background))
	for range count {
		create := &pb.WatchCreateRequest{Key: []byte(*prefix), RangeEnd: end(*prefix)}
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
			fail("%v", err)
		}
		if response := must(stream.Recv()); !response.Created || response.Canceled {
			fail("no watcher: %v", response)
		}
	}
	return stream
}

// watch measures from a put being sent to its event being there, for each of the watchers.
func watch() figures {
	var streams []pb.Watch_WatchClient
	for left := *watchers; left > 0; left -= *perStream {
		streams = append(streams, open(dial(), min(left, *perStream)))
	}
	var lock sync.Mutex
	var took latencies
	var come atomic.Int64
	began := time.Now()
	for _, stream := range streams {
		go func() {
			var own latencies
			for {
				response, err := stream.Recv()
				if err != nil {
					return
				}
				now := time.Since(began)
				for _, event := range response.Events {
					own = append(own, now-time.Duration(binary.BigEndian.Uint64(event.Kv.Value)))
				}
				lock.Lock()
				took = append(took, own...)
				lock.Unlock()
				come.Add(int64(len(own)))
				own = own[:0]
			}
		}()
	}
	all := dialAll()
	ctx, cancel := context.WithTimeout(background, time.Duration(*seconds*float64(time.Second)))
	defer cancel()
	put, late := steady(ctx, func(number int) {
		written := make([]byte, max(8, *valueLength))
		binary.BigEndian.PutUint64(written, uint64(time.Since(began)))
		must(all[number%len(all)].Put(background, &pb.PutRequest{Key: key(number % *keys), Value: written}))
	})
	wanted := int64(put * *watchers)
	for until := time.Now().Add(30 * time.Second); come.Load() < wanted && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	lock.Lock()
	defer lock.Unlock()
	found := figures{"puts": put, "events": come.Load(), "wanted": wanted, "latest_ms": late.Seconds() * 1e3}
	took.into(found)
	return found
}

// slow has many streams on one connection that nobody reads while keys are put; then each must have all of them, in order.
func slow() figures {
	conn := dial()
	var streams []pb.Watch_WatchClient
	for left := *watchers; left > 0; left -= *perStream {
		streams = append(streams, open(conn, min(left, *perStream)))
	}
	kv, written, began := dialAll(), value(), time.Now()
	var took latencies
	refused := 0
	for number := range *keys {
		at := time.Now()
		for {
			_, err := kv[number%len(kv)].Put(background, &pb.PutRequest{Key: key(number), Value: written})
			if status.Code(err) != codes.ResourceExhausted {
				must(0, err)
				break
			}
			refused++
			time.Sleep(10 * time.Millisecond)
		}
		took = append(took, time.Since(at))
	}
	found := figures{"per_s": float64(*keys) / time.Since(began).Seconds(), "refused": refused}
	took.into(found)
	time.Sleep(time.Second)
	reading := time.Now()
	var events, wrong atomic.Int64
	var group sync.WaitGroup
	for _, stream := range streams {
		group.Go(func() {
			last, left := map[int64]int64{}, *keys**perStream
			for left > 0 {
				response, err := stream.Recv()
				if err != nil || response.Canceled {
					wrong.Add(1)
					return
				}
				for _, event := range response.Events {
					if event.Kv.ModRevision <= last[response.WatchId] {
						wrong.Add(1)
					}
					last[response.WatchId] = event.Kv.ModRevision
				}
				left -= len(response.Events)
				events.Add(int64(len(response.Events)))
			}
		})
	}
	group.Wait()
	found["events"], found["wrong"], found["caught_up_s"] = events.Load(), wrong.Load(), time.Since(reading).Seconds()
	return found
}
