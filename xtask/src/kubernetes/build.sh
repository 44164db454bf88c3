#!/bin/bash
# build.sh CACHE PROGRAM…: builds programs of Kubernetes 1.20 into CACHE/bin from Debian's source package, which
# contains its Go modules. Needs Debian's golang-1.19-go. On two cores, the API server takes about two minutes. Building
# all takes up to 1.8 GB below CACHE/src, which is removed.
set -euo pipefail
cache=$1 src=$1/src
shift
mkdir -p "$cache/bin" "$src/apt/lists/partial" "$src/gp/src/k8s.io"
cd "$src"
# A separate apt configuration with the sources of the configured mirror. The system's settings are not changed.
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > apt/src.sources
printf 'Dir::Etc::sourcelist "%s";\nDir::Etc::sourceparts "-";\nDir::State::lists "%s";\n' \
  "$src/apt/src.sources" "$src/apt/lists" > apt/rc
tree=gp/src/k8s.io/kubernetes
rm -rf $tree
(cd apt && export APT_CONFIG=$src/apt/rc && apt-get -q update && apt-get -q source --download-only kubernetes) > apt/log 2>&1
(cd apt && apt-get -q download golang-github-modern-go-reflect2-dev) >> apt/log 2>&1
mkdir -p $tree
tar xzf apt/kubernetes_*.orig.tar.gz -C $tree --strip-components=1
# The vendored reflect2 1.0.1 does not work with Go 1.18 or later. The whole folder is replaced to avoid duplicate
# names.
dpkg -x apt/golang-github-modern-go-reflect2-dev_*.deb apt/reflect2
rm -rf $tree/vendor/github.com/modern-go/reflect2
cp -rL apt/reflect2/usr/share/gocode/src/github.com/modern-go/reflect2 $tree/vendor/github.com/modern-go/

# Without modules, since Go 1.19 would ask for "updates to go.mod".
export PATH=/usr/lib/go-1.19/bin:$PATH CGO_ENABLED=0 GO111MODULE=off GOFLAGS= GOPROXY=off GOPATH=$src/gp GOCACHE=$src/gocache
cd $tree
# The one generated file that the source package lacks.
go build -o "$src/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
packages=$(grep -rl --include=*.go '+k8s:openapi-gen=' pkg cmd staging plugin \
  | grep -vE 'zz_generated|_test.go|/(code-generator|sample-apiserver|sample-controller)/|/testdata/|_examples' \
  | xargs -n1 dirname | sort -u \
  | sed -E 's#^staging/src/#k8s.io/kubernetes/vendor/#; t; s#^#k8s.io/kubernetes/#' | paste -sd,)
"$src/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h hack/boilerplate/boilerplate.generatego.txt -r "$src/violations"
flags="-s -w"
for package in client-go/pkg component-base; do
  version=k8s.io/kubernetes/vendor/k8s.io/$package/version
  flags="$flags -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20 -X $version.gitTreeState=clean"
  flags="$flags -X $version.buildDate=2021-01-13T13:20:00Z"
done
# Without the clients of cloud providers, which are almost half of the code.
for name in "$@"; do
  go build -tags providerless -ldflags "$flags" -o "$cache/bin/$name.new" "./cmd/$name"
  mv "$cache/bin/$name.new" "$cache/bin/$name"
  echo "    $name is built"
done
cd /
chmod -R u+w "$src"
rm -rf "$src"
