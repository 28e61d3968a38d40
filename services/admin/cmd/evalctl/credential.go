package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) credentialCommands() *cobra.Command {
	return group("credential", "Who may call the services, and as whom: API tokens and client certificates",
		c.credentialCreateToken(), c.credentialAdmitCertificate(), c.credentialList(), c.credentialGet(), c.credentialRevoke())
}

// grantFlags say what a credential is to be.
type grantFlags struct {
	client, name string
	roles        []string
	life         time.Duration
	change       changeFlags
}

const roleNames = "tickets:write, tickets:read, tickets:read-all, webhooks:write, admin:read, admin:write"

func (f *grantFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.client, "client", "", "as whom: all credentials of a client are one caller")
	flags.StringVar(&f.name, "name", "", "what it is for; unique among the client's")
	flags.StringSliceVar(&f.roles, "role", nil, "what it is good for, of "+roleNames)
	flags.DurationVar(&f.life, "life", 0, "how long it is valid, such as 2160h; 0 for ever")
	for _, name := range []string{"client", "name", "role"} {
		must(cmd.MarkFlagRequired(name))
	}
	for _, name := range []string{"client", "name", "life"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(strings.Split(roleNames, ", "), cobra.ShellCompDirectiveNoFileComp)))
	f.change.add(cmd)
}

func (f *grantFlags) lifeOf() *durationpb.Duration {
	if f.life == 0 {
		return nil
	}
	return durationpb.New(f.life)
}

func (c *cli) credentialCreateToken() *cobra.Command {
	var f grantFlags
	cmd := &cobra.Command{
		Use: "create-token", Short: "Make an API token and print it, once",
		Long: "Make an API token and print it. It is shown this once, and stored as its SHA-256 alone.\n" +
			"With -o json it is the field token.",
		Example: `  evalctl credential create-token --client shop --name checkout --role tickets:write,tickets:read --life 2160h
  evalctl credential create-token --client ana --name laptop --role admin:write > token`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			response, err := adminv1.NewCredentialServiceClient(conn).CreateToken(ctx, &adminv1.CreateTokenRequest{
				ClientId: f.client, Name: f.name, Roles: f.roles, Life: f.lifeOf(),
				DryRun: f.change.dryRun, RequestId: f.change.requestID, Reason: f.change.reason,
			})
			if err != nil {
				return fmt.Errorf("create a token for %s: %w", f.client, err)
			}
			token := response.GetCredential()
			fmt.Fprintln(c.err, f.change.would(fmt.Sprintf("token %s of client %s is made; it is %s", token.GetId(), token.GetClientId(), strings.Join(token.GetRoles(), ", "))))
			if response.GetToken() == "" && !f.change.dryRun {
				fmt.Fprintln(c.err, "it was made before, and is shown once: revoke it and make another if it is lost")
			}
			return c.print(response, func(w io.Writer) {
				if response.GetToken() != "" {
					fmt.Fprintln(w, response.GetToken())
				}
			})
		}),
	}
	f.add(cmd)
	return cmd
}

func (c *cli) credentialAdmitCertificate() *cobra.Command {
	var f grantFlags
	cmd := &cobra.Command{
		Use: "admit-certificate NAME", Short: "Let callers in who show a client certificate with a name",
		Long: "Let callers in who show a client certificate with a subject alternative name. The services must\n" +
			"know the certificate's authority: EVALONCE_TLS_CLIENT_CA_FILE.",
		Example: `  evalctl credential admit-certificate URI:spiffe://mesh.example/ns/shop/sa/checkout --client shop --name mesh --role tickets:write`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			credential, err := adminv1.NewCredentialServiceClient(conn).AdmitCertificate(ctx, &adminv1.AdmitCertificateRequest{
				ClientId: f.client, Name: f.name, Roles: f.roles, Life: f.lifeOf(), SubjectAlternativeName: args[0],
				DryRun: f.change.dryRun, RequestId: f.change.requestID, Reason: f.change.reason,
			})
			if err != nil {
				return fmt.Errorf("admit certificate %s: %w", args[0], err)
			}
			return c.print(credential, func(w io.Writer) {
				fmt.Fprintln(w, f.change.would(fmt.Sprintf("certificate %s is client %s; credential %s", args[0], credential.GetClientId(), credential.GetId())))
			})
		}),
	}
	f.add(cmd)
	return cmd
}

func (c *cli) credentialList() *cobra.Command {
	var r adminv1.ListCredentialsRequest
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List credentials, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			credentials := adminv1.NewCredentialServiceClient(conn)
			all, more, err := pages(limit, func(size int32, token string) ([]*adminv1.Credential, string, error) {
				r.PageSize, r.PageToken = size, token
				page, err := credentials.ListCredentials(ctx, &r)
				return page.GetCredentials(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list credentials: %w", err)
			}
			return c.print(&adminv1.ListCredentialsResponse{Credentials: all, NextPageToken: more}, func(w io.Writer) {
				credentialTable(w, all...)
			})
		}),
	}
	cmd.Flags().StringVar(&r.ClientId, "client", "", "only this client's")
	cmd.Flags().BoolVar(&r.ShowEnded, "ended", false, "those that are expired or revoked, too")
	limitFlag(cmd, &limit)
	must(cmd.RegisterFlagCompletionFunc("client", cobra.NoFileCompletions))
	return cmd
}

func credentialTable(w io.Writer, credentials ...*adminv1.Credential) {
	rows := [][]string{{"ID", "CLIENT", "NAME", "KIND", "ROLES", "CREATED", "BY", "EXPIRES", "REVOKED"}}
	for _, credential := range credentials {
		kind, expires, revoked := "token", "never", ""
		if credential.GetSubjectAlternativeName() != "" {
			kind = credential.GetSubjectAlternativeName()
		}
		if credential.GetExpireTime() != nil {
			expires = instant(credential.GetExpireTime().AsTime())
		}
		if credential.GetRevokeTime() != nil {
			revoked = instant(credential.GetRevokeTime().AsTime()) + " by " + credential.GetRevokedBy()
		}
		rows = append(rows, []string{
			credential.GetId(), credential.GetClientId(), credential.GetName(), kind, strings.Join(credential.GetRoles(), ", "),
			instant(credential.GetCreateTime().AsTime()), credential.GetCreatedBy(), expires, revoked,
		})
	}
	table(w, rows...)
}

func (c *cli) credentialGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a credential",
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			credential, err := adminv1.NewCredentialServiceClient(conn).GetCredential(ctx, &adminv1.GetCredentialRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get credential %s: %w", args[0], err)
			}
			return c.print(credential, func(w io.Writer) { credentialTable(w, credential) })
		}),
	}
}

func (c *cli) credentialRevoke() *cobra.Command {
	var change changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "End a credential for good; services follow within seconds",
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			credentials := adminv1.NewCredentialServiceClient(conn)
			if !change.dryRun {
				if err := c.mayAsk(yes); err != nil {
					return err
				}
			}
			known, err := credentials.GetCredential(ctx, &adminv1.GetCredentialRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("revoke credential %s: %w", args[0], err)
			}
			if !yes && !change.dryRun {
				question := fmt.Sprintf("Revoke %q of client %s? Whoever uses it is refused from then on.", known.GetName(), known.GetClientId())
				if err := c.confirm(ctx, question); err != nil {
					return err
				}
			}
			revoked, err := credentials.RevokeCredential(ctx, &adminv1.RevokeCredentialRequest{
				Id: args[0], DryRun: change.dryRun, RequestId: change.requestID, Reason: change.reason,
			})
			if err != nil {
				return fmt.Errorf("revoke credential %s: %w", args[0], err)
			}
			return c.print(revoked, func(w io.Writer) {
				fmt.Fprintln(w, change.would(fmt.Sprintf("%q of client %s is revoked", revoked.GetName(), revoked.GetClientId())))
			})
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	change.add(cmd)
	return cmd
}
