package rpc

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what a caller may do. The roles are a closed list.
type Role string

// The roles.
const (
	TicketsWrite   Role = "tickets:write"    // create tickets
	TicketsRead    Role = "tickets:read"     // see one's own tickets
	TicketsReadAll Role = "tickets:read-all" // see the tickets of all clients
	WebhooksWrite  Role = "webhooks:write"   // keep one's own webhook endpoints, and see their deliveries
	AdminRead      Role = "admin:read"       // see what operators see
	AdminWrite     Role = "admin:write"      // change it; sees it too
)

// AllRoles are all of them.
func AllRoles() []Role {
	return []Role{TicketsWrite, TicketsRead, TicketsReadAll, WebhooksWrite, AdminRead, AdminWrite}
}

// ParseRoles reads roles, and refuses what is none: a role misspelt would else be a role withheld.
func ParseRoles(names []string) ([]Role, error) {
	roles := make([]Role, 0, len(names))
	for _, name := range names {
		role := Role(name)
		if !slices.Contains(AllRoles(), role) {
			return nil, fmt.Errorf("there is no role %q: the roles are %s", name, joined(AllRoles()))
		}
		if !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	return roles, nil
}

func joined(roles []Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// Access is what a method asks of its caller. The zero value is a denial.
type Access struct {
	kind  accessKind
	roles []Role
}

type accessKind int

const (
	denied accessKind = iota
	anyRole
	authenticated
	open
)

var (
	// Authenticated lets every caller in whom the Authenticator knows.
	Authenticated = Access{kind: authenticated}
	// Open lets everybody in.
	Open = Access{kind: open}
)

// Needs lets callers in who have one of the roles.
func Needs(roles ...Role) Access { return Access{kind: anyRole, roles: roles} }

// admits reports whether a caller who is known may call.
func (a Access) admits(p Principal) bool {
	switch a.kind {
	case authenticated, open:
		return true
	case anyRole:
		return slices.ContainsFunc(a.roles, p.Has)
	default:
		return false
	}
}
