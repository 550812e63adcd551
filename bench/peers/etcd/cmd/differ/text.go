package main

import (
	"fmt"
	"sort"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fields whose numbers differ between any two servers; only whether they are zero is compared.
var ownNumbers = map[protoreflect.FullName]bool{
	"etcdserverpb.ResponseHeader.cluster_id":       true,
	"etcdserverpb.ResponseHeader.member_id":        true,
	"etcdserverpb.ResponseHeader.raft_term":        true,
	"etcdserverpb.StatusResponse.dbSize":           true,
	"etcdserverpb.StatusResponse.dbSizeInUse":      true,
	"etcdserverpb.StatusResponse.leader":           true,
	"etcdserverpb.StatusResponse.raftIndex":        true,
	"etcdserverpb.StatusResponse.raftAppliedIndex": true,
	"etcdserverpb.StatusResponse.raftTerm":         true,
	"etcdserverpb.Member.ID":                       true,
	"etcdserverpb.AuthenticateResponse.token":      true,
}

// Texts that name the server, its version or its addresses.
var ownTexts = map[protoreflect.FullName]bool{
	"etcdserverpb.StatusResponse.version":        true,
	"etcdserverpb.StatusResponse.storageVersion": true,
	"etcdserverpb.Member.name":                   true,
	"etcdserverpb.Member.peerURLs":               true,
	"etcdserverpb.Member.clientURLs":             true,
}

// textOf is a message in one line: fields by number, what belongs to the server as "some".
func textOf(message protoreflect.Message) string {
	type part struct {
		number int
		text   string
	}
	var parts []part
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		text := ""
		switch {
		case ownNumbers[field.FullName()] || ownTexts[field.FullName()]:
			text = "some"
		case field.IsList():
			list := value.List()
			var all []string
			for i := range list.Len() {
				all = append(all, one(field, list.Get(i)))
			}
			text = "[" + strings.Join(all, " ") + "]"
		default:
			text = one(field, value)
		}
		parts = append(parts, part{int(field.Number()), string(field.Name()) + ":" + text})
		return true
	})
	sort.Slice(parts, func(i, j int) bool { return parts[i].number < parts[j].number })
	var all []string
	for _, part := range parts {
		all = append(all, part.text)
	}
	return "{" + strings.Join(all, " ") + "}"
}

func one(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return textOf(value.Message())
	case protoreflect.BytesKind:
		if bytes := value.Bytes(); len(bytes) > 40 {
			return fmt.Sprintf("%q..%d", bytes[:10], len(bytes))
		}
		return fmt.Sprintf("%q", value.Bytes())
	case protoreflect.EnumKind:
		if known := field.Enum().Values().ByNumber(value.Enum()); known != nil {
			return string(known.Name())
		}
		return fmt.Sprint(value.Enum())
	case protoreflect.StringKind:
		return fmt.Sprintf("%q", value.String())
	}
	return fmt.Sprint(value.Interface())
}

// answerOf is what is compared of an answer: its code and text, or the message without what is chance.
func answerOf(message proto.Message, err error) string {
	if err != nil {
		return fmt.Sprintf("%s %q", status.Code(err), status.Convert(err).Message())
	}
	switch it := message.(type) {
	case *pb.LeaseTimeToLiveResponse:
		// Seconds pass between the two servers.
		if it.TTL > 0 && it.TTL <= it.GrantedTTL {
			it.TTL = 1
		}
		sort.Slice(it.Keys, func(i, j int) bool { return string(it.Keys[i]) < string(it.Keys[j]) })
	case *pb.LeaseLeasesResponse:
		sort.Slice(it.Leases, func(i, j int) bool { return it.Leases[i].ID < it.Leases[j].ID })
	}
	return textOf(message.ProtoReflect())
}
