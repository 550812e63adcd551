package main

import (
	"context"
	"io"
	"math/rand"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// many calls `one` from all clients at a time until the seconds are over; refusals for want of memory are counted, and not measured.
func many(one func(kv pb.KVClient, rnd *rand.Rand) error) figures {
	all, took := dialAll(), make([]latencies, *clients)
	var refused atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	until := began.Add(time.Duration(*seconds * float64(time.Second)))
	for client := range *clients {
		group.Go(func() {
			rnd := rand.New(rand.NewSource(int64(client)))
			for time.Now().Before(until) {
				at := time.Now()
				err := one(all[client%len(all)], rnd)
				switch {
				case err == nil:
					took[client] = append(took[client], time.Since(at))
				case status.Code(err) == codes.ResourceExhausted:
					refused.Add(1)
				default:
					fail("%v", err)
				}
			}
		})
	}
	group.Wait()
	elapsed := time.Since(began).Seconds()
	var joined latencies
	for _, some := range took {
		joined = append(joined, some...)
	}
	found := figures{"operations": len(joined), "per_s": float64(len(joined)) / elapsed, "elapsed_s": elapsed, "refused": refused.Load()}
	joined.into(found)
	return found
}

func value() []byte {
	made := make([]byte, *valueLength)
	rand.New(rand.NewSource(1)).Read(made)
	return made
}

func puts() figures {
	written := value()
	return many(func(kv pb.KVClient, rnd *rand.Rand) error {
		_, err := kv.Put(background, &pb.PutRequest{Key: key(rnd.Intn(*keys)), Value: written})
		return err
	})
}

func gets() figures {
	return many(func(kv pb.KVClient, rnd *rand.Rand) error {
		_, err := kv.Range(background, &pb.RangeRequest{Key: key(rnd.Intn(*keys))})
		return err
	})
}

// txns are updates as Kubernetes does them: if the key is as it was read, put, else get.
func txns() figures {
	written := value()
	var succeeded atomic.Int64
	known := sync.Map{}
	found := many(func(kv pb.KVClient, rnd *rand.Rand) error {
		number := rnd.Intn(*keys)
		revision := int64(0)
		if it, ok := known.Load(number); ok {
			revision = it.(int64)
		}
		name := key(number)
		answer, err := kv.Txn(background, &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: name, Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: revision}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: name, Value: written}}}},
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: name}}}},
		})
		if err != nil {
			return err
		}
		if answer.Succeeded {
			succeeded.Add(1)
			known.Store(number, answer.Header.Revision)
		} else if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			known.Store(number, kvs[0].ModRevision)
		}
		return nil
	})
	found["succeeded"] = succeeded.Load()
	return found
}

// fill puts all keys, many in one transaction; what is refused for want of memory is tried again.
func fill() figures {
	all, written, began := dialAll(), value(), time.Now()
	var next, refused atomic.Int64
	var group sync.WaitGroup
	most := min(*batch, *keys)
	per := (*keys + most - 1) / most
	for client := range *clients {
		group.Go(func() {
			for {
				number := int(next.Add(1)) - 1
				if number >= per**versions {
					return
				}
				asked := &pb.TxnRequest{}
				for at := number % per * most; at < min(*keys, (number%per+1)*most); at++ {
					put := &pb.PutRequest{Key: key(at), Value: written}
					asked.Success = append(asked.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
				}
				for {
					_, err := all[client%len(all)].Txn(background, asked)
					if err == nil {
						break
					}
					if status.Code(err) != codes.ResourceExhausted {
						fail("%v", err)
					}
					refused.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	group.Wait()
	elapsed := time.Since(began).Seconds()
	return figures{"keys": *keys, "elapsed_s": elapsed, "per_s": float64(*keys**versions) / elapsed, "refused": refused.Load()}
}

// ranges reads or counts all keys with the prefix, one request after the other.
func ranges() figures {
	kv := pb.NewKVClient(dial())
	asked := &pb.RangeRequest{Key: []byte(*prefix), RangeEnd: end(*prefix), Limit: *limit, CountOnly: *countOnly}
	var took latencies
	var answer *pb.RangeResponse
	for range *times + 1 {
		at := time.Now()
		answer = must(kv.Range(background, asked))
		took = append(took, time.Since(at))
	}
	took = took[1:] // the first one warms
	found := figures{"count": answer.Count, "kvs": len(answer.Kvs)}
	took.into(found)
	return found
}

// steady puts so many a second until the context ends; how many were done, and how late the slowest began.
func steady(ctx context.Context, put func(number int)) (int, time.Duration) {
	began, late := time.Now(), time.Duration(0)
	slots := make(chan struct{}, 256)
	number := 0
	for ; ctx.Err() == nil; number++ {
		due := began.Add(time.Duration(float64(number) / *rate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		} else {
			late = max(late, -wait)
		}
		slots <- struct{}{}
		go func() {
			put(number)
			<-slots
		}()
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
	return number, late
}

// pages lists all keys at the revision of the beginning, page by page, while others are put.
func pages() figures {
	all, written := dialAll(), value()
	ctx, cancel := context.WithCancel(background)
	ended := make(chan figures)
	go func() {
		done, late := steady(ctx, func(number int) {
			must(all[number%len(all)].Put(background, &pb.PutRequest{Key: key(number % *keys), Value: written}))
		})
		ended <- figures{"puts": done, "latest_ms": late.Seconds() * 1e3}
	}()
	kv := pb.NewKVClient(dial())
	time.Sleep(500 * time.Millisecond)
	var took latencies
	var listed int64
	until := time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	for time.Now().Before(until) {
		asked := &pb.RangeRequest{Key: []byte(*prefix), RangeEnd: end(*prefix), Limit: *limit}
		for {
			at := time.Now()
			page := must(kv.Range(background, asked))
			took = append(took, time.Since(at))
			listed += int64(len(page.Kvs))
			if asked.Revision == 0 {
				asked.Revision = page.Header.Revision
			}
			if !page.More {
				break
			}
			asked.Key = append(page.Kvs[len(page.Kvs)-1].Key, 0)
		}
	}
	cancel()
	found := <-ended
	found["pages"], found["keys"] = len(took), listed
	took.into(found)
	return found
}

func deletes() figures {
	kv, began := pb.NewKVClient(dial()), time.Now()
	answer := must(kv.DeleteRange(background, &pb.DeleteRangeRequest{Key: []byte(*prefix), RangeEnd: end(*prefix)}))
	return figures{"deleted": answer.Deleted, "elapsed_s": time.Since(began).Seconds()}
}

func snapshot() figures {
	began, bytes := time.Now(), 0
	stream := must(pb.NewMaintenanceClient(dial()).Snapshot(background, &pb.SnapshotRequest{}))
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			return figures{"bytes": bytes, "elapsed_s": time.Since(began).Seconds()}
		}
		if status.Code(err) == codes.Unimplemented {
			return figures{"unimplemented": status.Convert(err).Message()}
		}
		bytes += len(must(part, err).Blob)
	}
}
