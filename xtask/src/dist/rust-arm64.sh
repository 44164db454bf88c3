#!/bin/bash
# rust-arm64.sh CACHE: unpacks Debian's `rustc-web` and its standard libraries for amd64 and arm64 into CACHE/root, and
# writes CACHE/rustc, which runs it. Nothing is installed: apt gets a configuration, lists and a state of its own, so that
# the system's architectures and packages stay as they are.
set -euo pipefail
cache=$1
rm -rf "$cache"
mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial" "$cache/root"
cd "$cache/apt"
: > status
cat > rc <<END
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "root";
Dir::State::lists "$cache/apt/lists";
Dir::State::status "$cache/apt/status";
Dir::Cache "$cache/apt";
Dir::Cache::archives "$cache/apt/archives";
END
export APT_CONFIG=$cache/apt/rc DEBIAN_FRONTEND=noninteractive
apt-get -q update > log
# The state is empty, so apt downloads all that the compiler needs, the C library included.
apt-get -q --yes --no-install-recommends --download-only install rustc-web libstd-rust-web-dev:arm64 >> log
# The C library and the linker are this system's, so only the parts of the compiler are unpacked.
for deb in archives/*.deb; do
  case ${deb##*/} in
    libstd-rust-web-dev_*_arm64.deb | rustc-web_*_amd64.deb | libstd-rust-web-*_amd64.deb | libllvm*_amd64.deb | \
      libedit*_amd64.deb | libffi*_amd64.deb | libxml2*_amd64.deb | libicu*_amd64.deb | libz3*_amd64.deb | \
      libbsd*_amd64.deb | libmd*_amd64.deb | libtinfo*_amd64.deb | libzstd*_amd64.deb | liblzma*_amd64.deb | \
      zlib1g_*_amd64.deb) dpkg-deb --extract "$deb" ../root ;;
  esac
done
cd "$cache"
rm -rf apt
test -d root/usr/lib/rustlib/aarch64-unknown-linux-gnu/lib
cat > rustc <<END
#!/bin/sh
LD_LIBRARY_PATH=$cache/root/usr/lib/x86_64-linux-gnu:$cache/root/lib/x86_64-linux-gnu \
  exec $cache/root/usr/bin/rustc --sysroot $cache/root/usr "\$@"
END
chmod 755 rustc
./rustc --version
