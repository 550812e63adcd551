package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Calls are not ended by the end of the run, so that each has an answer.
func call() (context.Context, context.CancelFunc, time.Time) {
	ctx, done := context.WithTimeout(context.Background(), 20*time.Second)
	return ctx, done, time.Now()
}

// write creates, updates and deletes by what it last knew of an object, which others change meanwhile.
func (r *run) write(ctx context.Context, number int) {
	known, rnd := map[string]int64{}, rand.New(rand.NewSource(int64(number)))
	for turn := 0; ctx.Err() == nil; turn++ {
		n := rnd.Intn(*objects)
		key := fmt.Sprintf("%s%s/ns-%d/object-%05d", every, kinds[rnd.Intn(len(kinds))], n%7, n)
		held, isKnown := known[key]
		switch chance := rnd.Intn(100); {
		case !isKnown || chance < 5:
			r.get(key, known)
		case chance < 15 && held != 0:
			r.remove(key, held, known)
		default:
			value := fmt.Sprintf("%d-%d %s", number, turn, strings.Repeat("x", 100+rnd.Intn(900)*rnd.Intn(5)))
			r.put(key, value, held, 0, known)
		}
		if number == 0 && turn%50 == 0 {
			r.health()
		}
	}
}

func (r *run) get(key string, known map[string]int64) {
	ctx, done, began := call()
	defer done()
	before := r.floor.Load()
	answer, err := r.client.Kubernetes.Get(ctx, key, kubernetes.GetOptions{})
	if err != nil {
		r.failed("get", began, err)
		return
	}
	r.count("gets")
	r.saw("get", before, answer.Revision)
	r.log.found(answer.Revision, key, answer.KV)
	known[key] = modOf(answer.KV)
}

func (r *run) put(key, value string, held int64, lease clientv3.LeaseID, known map[string]int64) {
	ctx, done, began := call()
	defer done()
	before := r.floor.Load()
	r.log.tried(key, value, held)
	options := kubernetes.PutOptions{GetOnFailure: true, LeaseID: lease}
	answer, err := r.client.Kubernetes.OptimisticPut(ctx, key, []byte(value), held, options)
	if err != nil {
		delete(known, key)
		r.failed("put", began, err)
		return
	}
	r.saw("put", before, answer.Revision)
	if answer.Succeeded {
		r.count("creates and updates")
		r.log.did(answer.Revision, key, value, held)
		known[key] = answer.Revision
		return
	}
	r.conflict("put", key, held, kubernetes.GetResponse{KV: answer.KV, Revision: answer.Revision}, known)
}

func (r *run) remove(key string, held int64, known map[string]int64) {
	ctx, done, began := call()
	defer done()
	before := r.floor.Load()
	r.log.tried(key, "", held)
	answer, err := r.client.Kubernetes.OptimisticDelete(ctx, key, held, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil {
		delete(known, key)
		r.failed("delete", began, err)
		return
	}
	r.saw("delete", before, answer.Revision)
	if answer.Succeeded {
		r.count("deletes")
		r.log.did(answer.Revision, key, "", held)
		known[key] = 0
		return
	}
	r.conflict("delete", key, held, kubernetes.GetResponse{KV: answer.KV, Revision: answer.Revision}, known)
}

func (r *run) conflict(what, key string, held int64, found kubernetes.GetResponse, known map[string]int64) {
	r.count("conflicts")
	if modOf(found.KV) == held {
		r.say("%s of %s at %d: refused, though it is what is there", what, key, held)
	}
	r.log.found(found.Revision, key, found.KV)
	known[key] = modOf(found.KV)
}

func (r *run) health() {
	ctx, done, began := call()
	defer done()
	if _, err := r.client.Kubernetes.Get(ctx, every+"health", kubernetes.GetOptions{}); err != nil {
		r.failed("health", began, err)
		return
	}
	found, err := r.client.Status(ctx, *endpoint)
	switch {
	case err != nil:
		r.failed("status", began, err)
	case found.DbSize <= 0 || found.Version == "" || len(found.Errors) > 0:
		r.say("status: %v", found)
	default:
		r.count("states")
	}
}

// events share a lease for a second, which nobody keeps alive.
func (r *run) events(ctx context.Context) {
	var lease clientv3.LeaseID
	var until time.Time
	for turn := 0; ctx.Err() == nil; turn++ {
		if time.Now().After(until) {
			asked, done, began := call()
			made, err := r.client.Grant(asked, ttl)
			done()
			if err != nil {
				r.failed("grant", began, err)
				continue
			}
			r.count("leases")
			lease, until = made.ID, time.Now().Add(time.Second)
			r.log.granted(made.ID, began)
		}
		value := fmt.Sprintf("event-%d %s", turn, strings.Repeat("e", 300))
		r.put(fmt.Sprintf("%sevents/ns-%d/event-%d", every, turn%7, turn), value, 0, lease, map[string]int64{})
		time.Sleep(5 * time.Millisecond)
	}
}

// compactor is what each API server does: who moves the key compacts up to the revision of the round before.
func (r *run) compactor(ctx context.Context) {
	const key = "compact_rev_key"
	var version, revision int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(*compact):
		}
		asked, done, began := call()
		answer, err := r.client.KV.Txn(asked).If(
			clientv3.Compare(clientv3.Version(key), "=", version),
		).Then(clientv3.OpPut(key, strconv.FormatInt(revision, 10))).Else(clientv3.OpGet(key)).Commit()
		switch {
		case err != nil:
			r.failed("compaction's transaction", began, err)
		case !answer.Succeeded:
			version, revision = answer.Responses[0].GetResponseRange().Kvs[0].Version, answer.Header.Revision
		default:
			if revision > 0 {
				r.compactTo(asked, began, revision)
			}
			version, revision = version+1, answer.Header.Revision
		}
		done()
	}
}

func (r *run) compactTo(ctx context.Context, began time.Time, revision int64) {
	raise(&r.gone, revision)
	_, err := r.client.Compact(ctx, revision)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		r.failed("compact", began, err)
		return
	}
	r.count("compactions")
	raise(&r.sealed, revision)
}
