package main

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// Few enough that a sort of equals by the real server keeps their order.
var keys = []string{"a", "aa", "ab", "b", "b\x00", "c", "d", "e", "\xff", "\xff\xff"}

var values = []string{"", "1", "2", "10", "v", "\x00", "a longer value, of which there are few"}

// Leases have fixed numbers, so that both servers know the same; some are never granted.
var leases = []int64{1, 2, 3, 4, 1 << 40, 9e18, 77, -5}

func (d *differ) chance(one int) bool { return d.rnd.Intn(one) == 0 }

func pick[T any](d *differ, from []T) T { return from[d.rnd.Intn(len(from))] }

// key is empty, and therefore wrong, at times.
func (d *differ) key() []byte {
	if d.chance(14) {
		return nil
	}
	return []byte(pick(d, keys))
}

// span is a key and an end: one key, a prefix, all from a key, everything, an empty range.
func (d *differ) span() ([]byte, []byte) {
	key := d.key()
	switch d.rnd.Intn(9) {
	case 0, 1, 2:
		return key, nil
	case 3:
		return key, []byte{0}
	case 4:
		return []byte{0}, []byte{0}
	case 5:
		end := append([]byte{}, key...)
		if len(end) > 0 && end[len(end)-1] < 255 {
			end[len(end)-1]++
		}
		return key, end
	}
	return key, []byte(pick(d, keys))
}

// revision is mostly 0 or one that is there; also one that is compacted, or to come.
func (d *differ) revision_() int64 {
	switch d.rnd.Intn(8) {
	case 0, 1, 2:
		return 0
	case 3:
		return d.newest + int64(d.rnd.Intn(3)) - 1
	case 4:
		return d.compacted + int64(d.rnd.Intn(3)) - 1
	case 5:
		return pick(d, []int64{-1, 1, d.newest + 1000, 1 << 62, -1 << 63})
	}
	return d.compacted + d.rnd.Int63n(max(1, d.newest-d.compacted+1))
}

func (d *differ) bound() int64 {
	if !d.chance(5) {
		return 0
	}
	return d.newest - int64(d.rnd.Intn(30)) + 1
}

func (d *differ) rangeRequest() *pb.RangeRequest {
	key, end := d.span()
	asked := &pb.RangeRequest{Key: key, RangeEnd: end, Revision: d.revision_(), Serializable: d.chance(4)}
	if d.chance(2) {
		asked.Limit = pick(d, []int64{1, 2, 3, 5, 100, -1, 1 << 62})
	}
	if d.chance(2) {
		asked.SortOrder = pb.RangeRequest_SortOrder(d.rnd.Intn(3))
		asked.SortTarget = pb.RangeRequest_SortTarget(d.rnd.Intn(5))
	}
	if d.chance(40) {
		asked.SortOrder = pick(d, []pb.RangeRequest_SortOrder{3, -1})
	}
	if d.chance(40) {
		asked.SortTarget = pick(d, []pb.RangeRequest_SortTarget{5, -1})
	}
	asked.KeysOnly, asked.CountOnly = d.chance(4), d.chance(6)
	asked.MinModRevision, asked.MaxModRevision = d.bound(), d.bound()
	asked.MinCreateRevision, asked.MaxCreateRevision = d.bound(), d.bound()
	return asked
}

func (d *differ) putRequest() *pb.PutRequest {
	asked := &pb.PutRequest{Key: d.key(), Value: []byte(pick(d, values)), PrevKv: d.chance(3)}
	if d.chance(3) {
		asked.Lease = pick(d, leases)
	}
	if d.chance(6) {
		asked.IgnoreValue = true
		if !d.chance(4) {
			asked.Value = nil
		}
	}
	if d.chance(6) {
		asked.IgnoreLease = true
		if !d.chance(4) {
			asked.Lease = 0
		}
	}
	return asked
}

func (d *differ) deleteRequest() *pb.DeleteRangeRequest {
	key, end := d.span()
	if !d.chance(4) {
		end = nil
	}
	return &pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: d.chance(2)}
}

func (d *differ) compareOf() *pb.Compare {
	asked := &pb.Compare{Key: d.key(), Result: pb.Compare_CompareResult(d.rnd.Intn(4)), Target: pb.Compare_CompareTarget(d.rnd.Intn(5))}
	if d.chance(3) {
		asked.Key, asked.RangeEnd = d.span()
	}
	if d.chance(60) {
		asked.Result = 4
	}
	if d.chance(60) {
		asked.Target = 5
	}
	union := int(asked.Target)
	if d.chance(12) {
		union = d.rnd.Intn(6) // one that may belong to another target, or none
	}
	number := pick(d, []int64{0, 0, 1, 2, d.newest, d.newest - 3, -1})
	switch union {
	case 0:
		asked.TargetUnion = &pb.Compare_Version{Version: number}
	case 1:
		asked.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: number}
	case 2:
		asked.TargetUnion = &pb.Compare_ModRevision{ModRevision: number}
	case 3:
		asked.TargetUnion = &pb.Compare_Value{Value: []byte(pick(d, values))}
	case 4:
		asked.TargetUnion = &pb.Compare_Lease{Lease: pick(d, append(leases, 0))}
	}
	return asked
}

// op is drawn so that a transaction of several is legal more often than not.
func (d *differ) op(depth int) *pb.RequestOp {
	switch drawn := d.rnd.Intn(20); {
	case drawn < 8:
		asked := d.putRequest()
		if len(asked.Key) == 0 && !d.chance(4) {
			asked.Key = []byte("a")
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: asked}}
	case drawn < 13:
		asked := d.rangeRequest()
		if d.chance(2) {
			asked.Revision = 0
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: asked}}
	case drawn < 16:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d.deleteRequest()}}
	case drawn < 19 && depth < 3:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: d.txn(depth + 1)}}
	case d.chance(6):
		return &pb.RequestOp{}
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(pick(d, keys))}}}
}

func (d *differ) ops(depth int) []*pb.RequestOp {
	count := pick(d, []int{0, 1, 1, 2, 2, 3, 4})
	var all []*pb.RequestOp
	for range count {
		all = append(all, d.op(depth))
	}
	if d.chance(150) {
		for range pick(d, []int{125, 128, 129}) {
			all = append(all, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a")}}})
		}
	}
	return all
}

func (d *differ) txn(depth int) *pb.TxnRequest {
	asked := &pb.TxnRequest{Success: d.ops(depth), Failure: d.ops(depth)}
	for range pick(d, []int{0, 1, 1, 1, 2}) {
		asked.Compare = append(asked.Compare, d.compareOf())
	}
	return asked
}

// transaction sends one. A real etcd ends itself where a put that keeps what is there finds that the same transaction deleted it,
// which a delete without an end can do, as it is not seen to overlap: so that is not drawn.
func (d *differ) transaction() {
	asked := d.txn(0)
	hasEndless := false
	eachOp(asked, func(op *pb.RequestOp) {
		hasEndless = hasEndless || string(op.GetRequestDeleteRange().GetRangeEnd()) == "\x00"
	})
	eachOp(asked, func(op *pb.RequestOp) {
		if put := op.GetRequestPut(); put != nil && hasEndless {
			put.IgnoreValue, put.IgnoreLease = false, false
		}
	})
	d.both(call{"Txn", pb.KV_Txn_FullMethodName, asked, &pb.TxnResponse{}, ""})
}

func eachOp(txn *pb.TxnRequest, see func(*pb.RequestOp)) {
	for _, ops := range [][]*pb.RequestOp{txn.Success, txn.Failure} {
		for _, op := range ops {
			see(op)
			if inner := op.GetRequestTxn(); inner != nil {
				eachOp(inner, see)
			}
		}
	}
}

// step sends one drawn request.
func (d *differ) step() {
	switch drawn := d.rnd.Intn(100); {
	case drawn < 22:
		d.both(call{"Range", pb.KV_Range_FullMethodName, d.rangeRequest(), &pb.RangeResponse{}, ""})
	case drawn < 26:
		asked := d.rangeRequest()
		if asked.SortOrder == 0 && asked.Limit > 0 {
			asked.SortTarget = 0 // etcd counts from the last of what it sorted
		}
		d.both(call{"RangeStream", pb.KV_RangeStream_FullMethodName, asked, nil, ""})
	case drawn < 45:
		d.both(call{"Put", pb.KV_Put_FullMethodName, d.putRequest(), &pb.PutResponse{}, ""})
	case drawn < 53:
		d.both(call{"DeleteRange", pb.KV_DeleteRange_FullMethodName, d.deleteRequest(), &pb.DeleteRangeResponse{}, ""})
	case drawn < 80:
		d.transaction()
	case drawn < 82:
		d.compact()
	case drawn < 96:
		d.lease()
	default:
		d.maintenance()
	}
}

func (d *differ) compact() {
	asked := &pb.CompactionRequest{Revision: d.revision_(), Physical: d.chance(2)}
	if d.chance(2) {
		asked.Revision = d.newest - int64(d.rnd.Intn(40)) // mostly leave some history
	}
	if _, err := d.both(call{"Compact", pb.KV_Compact_FullMethodName, asked, &pb.CompactionResponse{}, ""}); err == nil {
		d.compacted = max(asked.Revision, d.compacted)
	}
}

func (d *differ) lease() {
	id := pick(d, leases)
	invoke := func(kind, method string, asked, answer proto.Message) (proto.Message, error) {
		return d.both(call{kind, method, asked, answer, ""})
	}
	revoke := func(id int64) {
		invoke("LeaseRevoke", pb.Lease_LeaseRevoke_FullMethodName, &pb.LeaseRevokeRequest{ID: id}, &pb.LeaseRevokeResponse{})
	}
	switch d.rnd.Intn(10) {
	case 0, 1, 2:
		if id == 77 {
			id = 5 // 77 stays unknown
		}
		ttl := pick(d, []int64{1000, 5000, 9_000_000_000, 9_000_000_001, 1 << 62})
		invoke("LeaseGrant", pb.Lease_LeaseGrant_FullMethodName, &pb.LeaseGrantRequest{ID: id, TTL: ttl}, &pb.LeaseGrantResponse{})
	case 3:
		// What is short is taken back at once, before it can end by itself.
		id := 1000 + d.rnd.Int63n(1000)
		ttl := pick(d, []int64{0, -1, 1, 2, 3, -1 << 63})
		_, err := invoke("LeaseGrant", pb.Lease_LeaseGrant_FullMethodName, &pb.LeaseGrantRequest{ID: id, TTL: ttl}, &pb.LeaseGrantResponse{})
		if err == nil {
			revoke(id)
		}
	case 4:
		revoke(id)
	case 5, 6:
		invoke("LeaseTimeToLive", pb.Lease_LeaseTimeToLive_FullMethodName, &pb.LeaseTimeToLiveRequest{ID: pick(d, append(leases, 0)), Keys: d.chance(2)}, &pb.LeaseTimeToLiveResponse{})
	case 7:
		invoke("KeepAlive", pb.Lease_LeaseKeepAlive_FullMethodName, &pb.LeaseKeepAliveRequest{ID: pick(d, append(leases, 0))}, &pb.LeaseKeepAliveResponse{})
	case 8:
		invoke("LeaseLeases", pb.Lease_LeaseLeases_FullMethodName, &pb.LeaseLeasesRequest{}, &pb.LeaseLeasesResponse{})
	default:
		d.both(call{"Put", pb.KV_Put_FullMethodName, &pb.PutRequest{Key: []byte(pick(d, keys)), Lease: id}, &pb.PutResponse{}, ""})
	}
}

// maintenance asks what a server says of itself, and what a cluster of one refuses.
func (d *differ) maintenance() {
	switch d.rnd.Intn(10) {
	case 0:
		d.both(call{"MemberList", pb.Cluster_MemberList_FullMethodName, &pb.MemberListRequest{Linearizable: d.chance(2)}, &pb.MemberListResponse{}, ""})
	case 1:
		d.both(call{"Status", pb.Maintenance_Status_FullMethodName, &pb.StatusRequest{}, &pb.StatusResponse{}, ""})
	case 2:
		asked := &pb.AlarmRequest{Alarm: pb.AlarmType(d.rnd.Intn(3)), MemberID: uint64(d.rnd.Intn(2))}
		d.both(call{"Alarm", pb.Maintenance_Alarm_FullMethodName, asked, &pb.AlarmResponse{}, ""})
	case 3:
		d.both(call{"MoveLeader", pb.Maintenance_MoveLeader_FullMethodName, &pb.MoveLeaderRequest{TargetID: 5}, &pb.MoveLeaderResponse{}, ""})
	case 4:
		d.both(call{"MemberRemove", pb.Cluster_MemberRemove_FullMethodName, &pb.MemberRemoveRequest{ID: 5}, &pb.MemberRemoveResponse{}, ""})
		d.both(call{"MemberPromote", pb.Cluster_MemberPromote_FullMethodName, &pb.MemberPromoteRequest{ID: 5}, &pb.MemberPromoteResponse{}, ""})
	case 5:
		urls := pick(d, [][]string{nil, {"x"}, {"http://127.0.0.1"}, {"http://127.0.0.1:1/path"}, {""}})
		d.both(call{"MemberAdd", pb.Cluster_MemberAdd_FullMethodName, &pb.MemberAddRequest{PeerURLs: urls}, &pb.MemberAddResponse{}, ""})
	case 6:
		version := pick(d, []string{"3.6.0", "3.6", "3.5.0", "4.0.0", "x", ""})
		asked := &pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: version}
		d.both(call{"Downgrade", pb.Maintenance_Downgrade_FullMethodName, asked, &pb.DowngradeResponse{}, ""})
	default:
		// Up to the compacted revision etcd's answer depends on whether a compaction had ended when the next one began.
		asked := &pb.HashKVRequest{Revision: d.compacted + 1 + d.rnd.Int63n(max(1, d.newest-d.compacted)+2)}
		d.both(call{"HashKV", pb.Maintenance_HashKV_FullMethodName, asked, &pb.HashKVResponse{}, ""})
	}
}
