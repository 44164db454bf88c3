#!/bin/bash
# Runs gVisor under runc's shim. The second container of a pod would join the sandbox of the first, where the shim can
# neither connect its streams nor detect its exit. Therefore each container gets a separate sandbox. `--network=host` is
# the pod's network.
bundle='' kill=''
for ((i = 1; i <= $#; i++)); do
  case ${!i} in --bundle) j=$((i + 1)); bundle=${!j} ;; kill) kill=1 ;; esac
done
if [ -n "$bundle" ]; then
  sed -i 's/"io.kubernetes.cri.container-type":"container"/"io.kubernetes.cri.container-type":"sandbox"/' "$bundle/config.json"
fi
runsc=(/usr/bin/runsc --ignore-cgroups --platform=ptrace --network=host "$@")
[ -n "$kill" ] || exec "${runsc[@]}"
# The shim recognises only runc's messages. Without this, a container that has exited stays "Running".
said=$("${runsc[@]}" 2>&1) && exit 0
code=$?
echo "${said//sandbox is not running/container not running}" >&2
exit $code
