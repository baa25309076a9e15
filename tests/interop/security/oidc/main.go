// An OpenID provider of others (zitadel/oidc) on a free port: it prints its issuer, and gives out access tokens (JWT) to
// the client sid1 by its secret. They live for as many seconds as the first argument says.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/op"
)

type shortLived struct {
	*storage.Storage
	lifetime time.Duration
}

func (s shortLived) CreateAccessToken(ctx context.Context, request op.TokenRequest) (string, time.Time, error) {
	id, _, err := s.Storage.CreateAccessToken(ctx, request)
	return id, time.Now().Add(s.lifetime), err
}

func (s shortLived) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	client, err := s.Storage.ClientCredentials(ctx, id, secret)
	return withJWT{client}, err
}

type withJWT struct{ op.Client }

func (withJWT) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

func main() {
	seconds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	issuer := fmt.Sprintf("http://127.0.0.1:%d/", listener.Addr().(*net.TCPAddr).Port)
	store := shortLived{storage.NewStorage(storage.NewUserStore(issuer)), time.Duration(seconds) * time.Second}
	router := exampleop.SetupServer(issuer, store, nil, false)
	fmt.Println(issuer)
	log.Fatal(http.Serve(listener, router))
}
