package main

import (
	"context"
	"errors"
	"math/rand"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// list reads whole kinds, in pages or as a stream, and asks for revisions that cannot be read.
func (r *run) list(ctx context.Context, number int) {
	for turn := number; ctx.Err() == nil; turn++ {
		prefix := every + kinds[rand.Intn(len(kinds))] + "/"
		if turn%5 == 0 {
			prefix = every
		}
		if turn%2 == 0 {
			r.pages(prefix)
		} else {
			r.stream(prefix)
		}
		r.counted(prefix)
		r.outside(prefix)
		time.Sleep(100 * time.Millisecond)
	}
}

// pages lists at the revision of the first page; a page has twice as many as the one before. The revision; 0: none.
func (r *run) pages(prefix string) int64 {
	ctx, done, began := call()
	defer done()
	before := r.floor.Load()
	asked := kubernetes.ListOptions{Limit: 50}
	var all []*mvccpb.KeyValue
	var total int64
	for {
		answer, err := r.client.Kubernetes.List(ctx, prefix, asked)
		if errors.Is(err, rpctypes.ErrCompacted) && asked.Revision != 0 && asked.Revision < r.gone.Load() {
			r.count("lists that were compacted")
			return 0
		}
		if err != nil {
			r.failed("list", began, err)
			return 0
		}
		if asked.Revision == 0 {
			r.saw("list", before, answer.Revision)
			asked.Revision, total = answer.Revision, answer.Count
		}
		if int64(len(all))+answer.Count != total {
			r.say("list of %s at %d: %d remain after %d of %d", prefix, asked.Revision, answer.Count, len(all), total)
		}
		all = append(all, answer.Kvs...)
		if answer.Count <= int64(len(answer.Kvs)) {
			break
		}
		asked.Continue = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
		asked.Limit = min(2*asked.Limit, 10_000)
	}
	r.count("lists in pages")
	r.log.listed(asked.Revision, prefix, all)
	return asked.Revision
}

func (r *run) stream(prefix string) int64 {
	ctx, done, began := call()
	defer done()
	before := r.floor.Load()
	chunks, err := r.client.KV.GetStream(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		r.failed("stream", began, err)
		return 0
	}
	answer, err := clientv3.GetStreamToGetResponse(chunks)
	if err != nil {
		r.failed("stream", began, err)
		return 0
	}
	if answer.Header == nil || answer.Count != int64(len(answer.Kvs)) {
		r.say("stream of %s: %d of %d", prefix, len(answer.Kvs), answer.Count)
		return 0
	}
	r.count("lists as streams")
	r.saw("stream", before, answer.Header.Revision)
	r.log.listed(answer.Header.Revision, prefix, answer.Kvs)
	return answer.Header.Revision
}

func (r *run) counted(prefix string) {
	ctx, done, began := call()
	defer done()
	before := r.floor.Load()
	answer, err := r.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		r.failed("count", began, err)
		return
	}
	r.count("counts")
	r.saw("count", before, answer.Header.Revision)
	r.log.counted(answer.Header.Revision, prefix, answer.Count)
}

// outside asks for what was compacted and what is not yet.
func (r *run) outside(prefix string) {
	ctx, done, began := call()
	defer done()
	asks := map[int64]error{r.floor.Load() + 10_000_000: rpctypes.ErrFutureRev}
	if sealed := r.sealed.Load(); sealed > 1 {
		asks[sealed-1] = rpctypes.ErrCompacted
	}
	for revision, wanted := range asks {
		_, err := r.client.Kubernetes.List(ctx, prefix, kubernetes.ListOptions{Limit: 1, Revision: revision})
		switch {
		case errors.Is(err, wanted):
			r.count("revisions refused")
		case err == nil:
			r.say("list at %d instead of %v: an answer", revision, wanted)
		default:
			r.failed("list of another time", began, err)
		}
	}
}
