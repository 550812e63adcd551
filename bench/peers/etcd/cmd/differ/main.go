// differ sends the same drawn requests to a real etcd and to another server, and compares code, text and whole answer of each.
//
//	seed ─► draw ─┬─► etcd     ─► answer ─┐
//	              └─► the peer ─► answer ─┴─► equal but for ids, terms and seconds left?
//
// Keys come from a small alphabet, so that requests meet; about every fourth one is wrong on purpose. Both servers are
// empty at the beginning. The first difference that leaves the two at different revisions ends the run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"regexp"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const wait = 20 * time.Second

// call is one request: its method as gRPC names it, and an empty answer.
type call struct {
	kind    string
	method  string
	request proto.Message
	answer  proto.Message
	user    string // whose token it brings, in the mode of auth
}

func (c call) String() string {
	by := ""
	if c.user != "" {
		by = " by " + c.user
	}
	return strings.TrimPrefix(c.method, "/etcdserverpb.") + textOf(c.request.ProtoReflect()) + by
}

// server is one of the two, with the tokens that it gave.
type server struct {
	name   string
	conn   *grpc.ClientConn
	tokens map[string]string
}

func dial(name, address string) *server {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		fail("%s at %s: %v", name, address, err)
	}
	return &server{name: name, conn: conn, tokens: map[string]string{}}
}

func (s *server) context(user string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	if user != "" && user != "nobody" {
		ctx = metadata.AppendToOutgoingContext(ctx, "token", s.tokens[user])
	}
	return ctx, cancel
}

func (s *server) ask(c call) (proto.Message, error) {
	ctx, cancel := s.context(c.user)
	defer cancel()
	if c.kind == "RangeStream" {
		return s.rangeStream(ctx, c.request.(*pb.RangeRequest))
	}
	if c.kind == "KeepAlive" {
		stream, err := pb.NewLeaseClient(s.conn).LeaseKeepAlive(ctx)
		if err != nil {
			return nil, err
		}
		if err := stream.Send(c.request.(*pb.LeaseKeepAliveRequest)); err != nil {
			return nil, err
		}
		return stream.Recv()
	}
	answer := proto.Clone(c.answer)
	err := s.conn.Invoke(ctx, c.method, c.request, answer, grpc.WaitForReady(true))
	if it, ok := answer.(*pb.AuthenticateResponse); ok && err == nil {
		s.tokens[c.request.(*pb.AuthenticateRequest).Name] = it.Token
	}
	return answer, err
}

// rangeStream is the whole of a stream as if it were one answer.
func (s *server) rangeStream(ctx context.Context, asked *pb.RangeRequest) (proto.Message, error) {
	stream, err := pb.NewKVClient(s.conn).RangeStream(ctx, asked)
	if err != nil {
		return nil, err
	}
	whole := &pb.RangeResponse{}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return nil, err
		}
		proto.Merge(whole, chunk.RangeResponse)
	}
}

func fail(text string, values ...any) {
	fmt.Fprintf(os.Stderr, text+"\n", values...)
	os.Exit(2)
}

// summary counts requests by kind, errors among them, and differences.
type summary struct {
	Requests, Errors, Differences int
	Kinds                         map[string]int
	ErrorsOf                      map[string]int
	Texts                         map[string]int
	Diverged                      bool
}

type differ struct {
	etcd, peer *server
	rnd        *rand.Rand
	out        summary
	allowed    *regexp.Regexp
	most       int
	newest     int64
	compacted  int64
	verbose    bool
	who        string // who asks, in the mode of auth
}

func (d *differ) revision(message proto.Message) {
	headed, ok := message.(interface{ GetHeader() *pb.ResponseHeader })
	if ok && headed.GetHeader() != nil {
		d.newest = max(d.newest, headed.GetHeader().Revision)
	}
}

// both asks both; what etcd said.
func (d *differ) both(c call) (proto.Message, error) {
	if c.user == "" {
		c.user = d.who
	}
	message, err := d.etcd.ask(c)
	other, otherErr := d.peer.ask(c)
	d.out.Requests++
	d.out.Kinds[c.kind]++
	if err != nil {
		d.out.Errors++
		d.out.ErrorsOf[c.kind]++
		d.out.Texts[status.Convert(err).Message()]++
	} else {
		d.revision(message)
	}
	d.compare(c.String(), answerOf(message, err), answerOf(other, otherErr))
	return message, err
}

func (d *differ) compare(request, answer, other string) {
	if d.verbose {
		fmt.Printf("%d %s\n    %s\n", d.out.Requests, request, answer)
	}
	if answer == other || d.allowed != nil && d.allowed.MatchString(request+" -> "+answer+" | "+other) {
		return
	}
	d.out.Differences++
	fmt.Printf("difference %d at request %d, newest %d, compacted %d\n  request  %s\n  %-8s %s\n  %-8s %s\n",
		d.out.Differences, d.out.Requests, d.newest, d.compacted, request, d.etcd.name, answer, d.peer.name, other)
}

// diverged says whether the two no longer hold the same keys.
func (d *differ) diverged() bool {
	all := call{"Range", pb.KV_Range_FullMethodName, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}, &pb.RangeResponse{}, d.root()}
	message, err := d.etcd.ask(all)
	other, otherErr := d.peer.ask(all)
	return answerOf(message, err) != answerOf(other, otherErr)
}

func (d *differ) root() string {
	if d.etcd.tokens["root"] != "" {
		return "root"
	}
	return ""
}

func main() {
	etcd := flag.String("etcd", "127.0.0.1:2379", "address of the real etcd")
	peer := flag.String("peer", "127.0.0.1:12379", "address of the other server")
	requests := flag.Int("requests", 20_000, "how many")
	seed := flag.Int64("seed", 1, "of the draw")
	most := flag.Int("differences", 20, "stop after so many")
	allowed := flag.String("allow", "", "a regular expression over `request -> answer | other`: differences that are known")
	auth := flag.Bool("auth", false, "draw calls of auth, and others with and without tokens")
	verbose := flag.Bool("verbose", false, "print each request and etcd's answer")
	flag.Parse()
	d := &differ{
		etcd: dial("etcd", *etcd), peer: dial("ramekin", *peer), rnd: rand.New(rand.NewSource(*seed)), most: *most, verbose: *verbose,
		out: summary{Kinds: map[string]int{}, ErrorsOf: map[string]int{}, Texts: map[string]int{}},
	}
	if *allowed != "" {
		d.allowed = regexp.MustCompile(*allowed)
	}
	d.run(*requests, *auth)
	told, _ := json.Marshal(d.out)
	fmt.Println(string(told))
	if d.out.Differences > 0 {
		os.Exit(1)
	}
}

func (d *differ) run(requests int, auth bool) {
	began, seen := time.Now(), 0
	if auth {
		d.beginAuth()
	}
	for d.out.Requests < requests && d.out.Differences < d.most {
		switch {
		case auth:
			d.stepOfAuth()
		case d.rnd.Intn(60) == 0:
			d.watch()
		default:
			d.step()
		}
		if d.out.Differences > seen {
			seen = d.out.Differences
			if d.diverged() {
				d.out.Diverged = true
				fmt.Println("the two no longer hold the same: the run ends here")
				break
			}
		}
	}
	fmt.Printf("%d requests in %.1f s, %.1f %% of them errors, %d differences\n", d.out.Requests, time.Since(began).Seconds(),
		100*float64(d.out.Errors)/float64(max(1, d.out.Requests)), d.out.Differences)
	for kind, count := range d.out.Kinds {
		fmt.Printf("  %-22s %6d, errors %6d\n", kind, count, d.out.ErrorsOf[kind])
	}
	for text, count := range d.out.Texts {
		fmt.Printf("  %6d  %s\n", count, text)
	}
}
