#!/bin/sh
# Restarts the kubelet when it exits, as a service manager would, unless the file `kubelet.hold` exists, which simulates
# a lost node. The process id is in `kubelet.pid`.
pid=
trap 'kill "$pid"; wait "$pid"; exit' TERM
while :; do
  "$@" &
  pid=$!
  echo "$pid" > kubelet.pid
  wait "$pid"
  while [ -e kubelet.hold ]; do sleep 0.2; done
done
