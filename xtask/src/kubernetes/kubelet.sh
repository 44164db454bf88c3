#!/bin/sh
# Starts the kubelet again when it has ended, as a service manager would; not while there is a file `kubelet.hold`, which
# makes a node that is gone. Its number is in `kubelet.pid`.
pid=
trap 'kill "$pid"; wait "$pid"; exit' TERM
while :; do
  "$@" &
  pid=$!
  echo "$pid" > kubelet.pid
  wait "$pid"
  while [ -e kubelet.hold ]; do sleep 0.2; done
done
