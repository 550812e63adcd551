// concurrency runs the recipes of etcd's Go client against a server: mutexes, elections and transactional memory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:2379", "address of the server")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, DialTimeout: 10 * time.Second})
	check("dial", err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	mutexes(ctx, client)
	elections(ctx, client)
	memory(ctx, client)
	expiry(ctx, client)
	fmt.Println("ok")
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func session(client *clientv3.Client, ttl int) *concurrency.Session {
	made, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	check("session", err)
	return made
}

// mutexes: many add to a number that nothing but the mutex guards; and who tries while it is held is told so.
func mutexes(ctx context.Context, client *clientv3.Client) {
	const many, each = 8, 10
	sum, inside := 0, 0
	var group sync.WaitGroup
	for range many {
		group.Go(func() {
			own := session(client, 30)
			defer own.Close()
			mutex := concurrency.NewMutex(own, "/mutex/")
			for range each {
				check("lock", mutex.Lock(ctx))
				inside++
				if inside != 1 {
					check("lock", errors.New("two hold one mutex"))
				}
				sum++
				inside--
				check("unlock", mutex.Unlock(ctx))
			}
		})
	}
	group.Wait()
	if sum != many*each {
		check("mutex", fmt.Errorf("%d instead of %d", sum, many*each))
	}
	one, other := session(client, 30), session(client, 30)
	defer one.Close()
	defer other.Close()
	held := concurrency.NewMutex(one, "/try/")
	check("lock", held.Lock(ctx))
	if err := concurrency.NewMutex(other, "/try/").TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		check("try", fmt.Errorf("instead of ErrLocked: %v", err))
	}
	check("unlock", held.Unlock(ctx))
}

// elections: one leads after the other, and who observes sees each.
func elections(ctx context.Context, client *clientv3.Client) {
	watcher := session(client, 30)
	defer watcher.Close()
	seen := concurrency.NewElection(watcher, "/election/").Observe(ctx)
	for number := range 5 {
		own := session(client, 30)
		election := concurrency.NewElection(own, "/election/")
		name := strconv.Itoa(number)
		check("campaign", election.Campaign(ctx, name))
		response := <-seen
		if string(response.Kvs[0].Value) != name {
			check("observe", fmt.Errorf("%q leads instead of %q", response.Kvs[0].Value, name))
		}
		check("proclaim", election.Proclaim(ctx, name+"!"))
		if response = <-seen; string(response.Kvs[0].Value) != name+"!" {
			check("observe", fmt.Errorf("%q is proclaimed instead of %q", response.Kvs[0].Value, name+"!"))
		}
		leader, err := election.Leader(ctx)
		check("leader", err)
		if string(leader.Kvs[0].Value) != name+"!" {
			check("leader", fmt.Errorf("%q", leader.Kvs[0].Value))
		}
		check("resign", election.Resign(ctx))
		own.Close()
	}
	if _, err := concurrency.NewElection(watcher, "/election/").Leader(ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
		check("leader", fmt.Errorf("instead of none: %v", err))
	}
}

// memory: money goes from account to account at all levels of isolation, and none is lost.
func memory(ctx context.Context, client *clientv3.Client) {
	const accounts, transfers = 5, 30
	for _, isolation := range []concurrency.Isolation{
		concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads,
	} {
		for account := range accounts {
			_, err := client.Put(ctx, fmt.Sprint("/account/", account), "100")
			check("put", err)
		}
		var group sync.WaitGroup
		for worker := range 4 {
			group.Go(func() {
				for turn := range transfers {
					from, to := fmt.Sprint("/account/", (worker+turn)%accounts), fmt.Sprint("/account/", (worker*3+turn*2+1)%accounts)
					if from == to {
						continue
					}
					_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
						a, _ := strconv.Atoi(stm.Get(from))
						b, _ := strconv.Atoi(stm.Get(to))
						stm.Put(from, strconv.Itoa(a-1))
						stm.Put(to, strconv.Itoa(b+1))
						return nil
					}, concurrency.WithIsolation(isolation), concurrency.WithAbortContext(ctx))
					check("stm", err)
				}
			})
		}
		group.Wait()
		all, err := client.Get(ctx, "/account/", clientv3.WithPrefix())
		check("get", err)
		sum := 0
		for _, kv := range all.Kvs {
			number, _ := strconv.Atoi(string(kv.Value))
			sum += number
		}
		if sum != 100*accounts {
			check("stm", fmt.Errorf("%d instead of %d", sum, 100*accounts))
		}
	}
}

// expiry: a session that is no longer kept alive lets go of its mutex.
func expiry(ctx context.Context, client *clientv3.Client) {
	dead := session(client, 2)
	check("lock", concurrency.NewMutex(dead, "/dead/").Lock(ctx))
	dead.Orphan()
	own := session(client, 30)
	defer own.Close()
	began := time.Now()
	check("lock", concurrency.NewMutex(own, "/dead/").Lock(ctx))
	if took := time.Since(began); took > 15*time.Second {
		check("expiry", fmt.Errorf("%v until the mutex of a dead session was free", took))
	}
}
