package main

import (
	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

var (
	users     = []string{"root", "u1", "u2", "u3", ""}
	roles     = []string{"root", "r1", "r2", "r3", ""}
	passwords = []string{"one", "one", "one", "two", ""}
	// Who asks: a user with the token that it last got, nobody, or one with a token that never was.
	askers = []string{"root", "root", "u1", "u1", "u2", "u3", "nobody", "liar"}
)

func (d *differ) auth(name string, asked, answer proto.Message) (proto.Message, error) {
	kind := name
	if name == "AuthEnable" || name == "AuthDisable" || name == "AuthStatus" || name == "Authenticate" {
		kind = "Auth/" + name
	}
	return d.both(call{kind, "/etcdserverpb.Auth/" + name, asked, answer, ""})
}

// beginAuth makes what there must be for auth to be on, and users with roles beside; what is there already answers with errors.
func (d *differ) beginAuth() {
	d.etcd.tokens["liar"], d.peer.tokens["liar"] = "abcdefghijklmnop.1", "abcdefghijklmnop.1"
	d.who = "nobody"
	for _, user := range users[:4] {
		d.auth("UserAdd", &pb.AuthUserAddRequest{Name: user, Password: "one"}, &pb.AuthUserAddResponse{})
	}
	for _, role := range roles[:4] {
		d.auth("RoleAdd", &pb.AuthRoleAddRequest{Name: role}, &pb.AuthRoleAddResponse{})
	}
	for i, user := range users[:4] {
		d.auth("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: user, Role: roles[i]}, &pb.AuthUserGrantRoleResponse{})
	}
	for _, role := range roles[1:4] {
		permission := &authpb.Permission{PermType: authpb.Permission_READWRITE, Key: []byte("a"), RangeEnd: []byte("c")}
		asked := &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: permission}
		d.auth("RoleGrantPermission", asked, &pb.AuthRoleGrantPermissionResponse{})
	}
	d.auth("AuthEnable", &pb.AuthEnableRequest{}, &pb.AuthEnableResponse{})
	for _, user := range users[:4] {
		d.authenticate(user, "one")
	}
}

func (d *differ) authenticate(user, password string) {
	d.auth("Authenticate", &pb.AuthenticateRequest{Name: user, Password: password}, &pb.AuthenticateResponse{})
}

// stepOfAuth sends one request of somebody: of auth, or one that auth may refuse.
func (d *differ) stepOfAuth() {
	d.who = pick(d, askers)
	switch drawn := d.rnd.Intn(100); {
	case drawn < 40:
		d.ofUsers()
	case drawn < 44:
		d.authenticate(pick(d, users), pick(d, passwords))
	case drawn < 45 && d.chance(6):
		d.auth("AuthDisable", &pb.AuthDisableRequest{}, &pb.AuthDisableResponse{})
		for range 10 {
			d.ofUsers()
		}
		d.beginAuth()
	case drawn < 46:
		d.watch()
	case drawn < 48:
		d.auth("AuthStatus", &pb.AuthStatusRequest{}, &pb.AuthStatusResponse{})
	default:
		d.step()
	}
}

func (d *differ) permission() *authpb.Permission {
	if d.chance(12) {
		return nil
	}
	key, end := d.span()
	return &authpb.Permission{PermType: authpb.Permission_Type(d.rnd.Intn(3)), Key: key, RangeEnd: end}
}

func (d *differ) ofUsers() {
	user, role := pick(d, users), pick(d, roles)
	switch d.rnd.Intn(15) {
	case 0:
		// An empty one opens in etcd what was added with it; ours lets nobody in without a password.
		asked := &pb.AuthUserAddRequest{Name: user, Password: pick(d, passwords[:4])}
		if d.chance(6) {
			asked.Options = &authpb.UserAddOptions{NoPassword: true}
		}
		d.auth("UserAdd", asked, &pb.AuthUserAddResponse{})
	case 1, 2:
		d.auth("UserGet", &pb.AuthUserGetRequest{Name: user}, &pb.AuthUserGetResponse{})
	case 3:
		d.auth("UserList", &pb.AuthUserListRequest{}, &pb.AuthUserListResponse{})
	case 4:
		d.auth("UserDelete", &pb.AuthUserDeleteRequest{Name: user}, &pb.AuthUserDeleteResponse{})
	case 5:
		password := "one"
		if user != "root" {
			password = pick(d, passwords)
		}
		asked := &pb.AuthUserChangePasswordRequest{Name: user, Password: password}
		d.auth("UserChangePassword", asked, &pb.AuthUserChangePasswordResponse{})
		d.authenticate(user, password)
	case 6, 7:
		d.auth("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: user, Role: role}, &pb.AuthUserGrantRoleResponse{})
	case 8:
		d.auth("UserRevokeRole", &pb.AuthUserRevokeRoleRequest{Name: user, Role: role}, &pb.AuthUserRevokeRoleResponse{})
	case 9:
		d.auth("RoleAdd", &pb.AuthRoleAddRequest{Name: role}, &pb.AuthRoleAddResponse{})
	case 10:
		d.auth("RoleGet", &pb.AuthRoleGetRequest{Role: role}, &pb.AuthRoleGetResponse{})
	case 11:
		d.auth("RoleList", &pb.AuthRoleListRequest{}, &pb.AuthRoleListResponse{})
	case 12:
		if d.chance(3) {
			d.auth("RoleDelete", &pb.AuthRoleDeleteRequest{Role: role}, &pb.AuthRoleDeleteResponse{})
		}
	case 13:
		asked := &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: d.permission()}
		d.auth("RoleGrantPermission", asked, &pb.AuthRoleGrantPermissionResponse{})
	default:
		key, end := d.span()
		asked := &pb.AuthRoleRevokePermissionRequest{Role: role, Key: key, RangeEnd: end}
		d.auth("RoleRevokePermission", asked, &pb.AuthRoleRevokePermissionResponse{})
	}
}
