// stargz-snapshotter SOCKET ROOT: the snapshotter of containerd/stargz-snapshotter as a service for containerd.
// Its own daemon is no module that `go install` takes; this starts the same service with its defaults, for our tests.
package main

import (
	"context"
	"log"
	"net"
	"os"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	stargzfs "github.com/containerd/stargz-snapshotter/fs"
	"github.com/containerd/stargz-snapshotter/metadata/memory"
	"github.com/containerd/stargz-snapshotter/service"
	"google.golang.org/grpc"
)

func main() {
	snapshotter, err := service.NewStargzSnapshotterService(context.Background(), os.Args[2], &service.Config{},
		service.WithFilesystemOptions(stargzfs.WithMetadataStore(memory.NewReader)))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	snapshots.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshotter))
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}
