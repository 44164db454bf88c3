#!/bin/bash
# keys.sh API NODE_IP: creates a CA, certificates and kubeconfigs in the working directory. A client's user is its CN,
# its group is its O.
set -euo pipefail
ec=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${ec[@]}" -days 30 -subj /CN=toolwharf-test -keyout ca.key -out ca.crt
certificate() { # NAME SUBJECT [ALTERNATIVES]
  openssl req "${ec[@]}" -subj "$2" -keyout "$1.key" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
    -extfile <(echo "extendedKeyUsage=clientAuth,serverAuth"; [ -z "${3:-}" ] || echo "subjectAltName=$3")
}
certificate apiserver /CN=kube-apiserver DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1
certificate admin /O=system:masters/CN=admin
certificate controller-manager /CN=system:kube-controller-manager
certificate scheduler /CN=system:kube-scheduler
certificate kubelet /O=system:nodes/CN=system:node:node "DNS:node,IP:$2"
openssl genrsa -out accounts.key 2048
openssl rsa -in accounts.key -pubout -out accounts.pub
for user in admin controller-manager scheduler kubelet; do
  cat > $user.conf <<C
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$1", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $user, user: {client-certificate-data: $(base64 -w0 $user.crt), client-key-data: $(base64 -w0 $user.key)}}]
contexts: [{name: test, context: {cluster: test, user: $user}}]
current-context: test
C
done
