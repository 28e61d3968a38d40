// Package openapi holds the OpenAPI 2.0 documents of the REST forms of the APIs: one for clients, one for
// operators, each generated from all the .proto files of its package, with the field names that the servers write.
package openapi

import _ "embed"

//go:embed ticket/ticket.swagger.json
var ticket string

//go:embed admin/admin.swagger.json
var admin string

// Ticket is the document of the ticket API, as JSON.
func Ticket() string { return ticket }

// Admin is the document of the admin API, as JSON.
func Admin() string { return admin }
