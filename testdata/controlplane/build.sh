#!/usr/bin/env bash
# usage: build.sh DIR   Builds etcd and kube-apiserver into DIR. A cold build
# takes up to 30 CPU minutes; Go's build cache keeps it.
set -eu
dir=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
# Clients refuse a server whose version they can't parse; it is set at link time.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
base=k8s.io/component-base/version
go build -ldflags "-s -w -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor%%.*} \
  -X $base.gitTreeState=clean -X $base.gitCommit=$version -X $base.buildDate=2026-01-01T00:00:00Z" \
  -o "$dir/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
go build -ldflags '-s -w' -o "$dir/etcd" go.etcd.io/etcd/server/v3
