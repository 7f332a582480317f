#!/bin/sh
# Packs a release into target/dist: the module, its checksum, its bill of materials, envoy/, and
# all of that as one archive. Fails unless a second build, in another folder, gives the same bytes.
#
#   dist.sh MODULE VERSION PYTHON ENVOY      (from the root of the repository)
set -eu
module=$1 version=$2 python=$3 envoy=$4
dist=target/dist
name=prefix-router-$version
folder=$dist/$name
rm -rf "$dist"
mkdir -p "$folder"

# The same source in another place with an empty target folder.
mkdir "$dist/again"
git ls-files -z | tar -c --null -T - | tar -x -C "$dist/again"
env -u CARGO_TARGET_DIR make -s -C "$dist/again" build
cmp "$module" "$dist/again/$module"
echo "built twice, the same bytes: $(sha256sum < "$module" | cut -c 1-64)"
rm -rf "$dist/again"

install -m 644 "$module" LICENSE README.md CHANGELOG.md "$folder"
cargo metadata --format-version 1 --locked --filter-platform wasm32-wasip1 |
  "$python" tests/tools/sbom.py --module "$module" > "$folder/prefix_router.cdx.json"
git ls-files -z envoy | tar -c --null -T - | tar -x -C "$folder"
install -m 644 "$module" "$folder/envoy/kubernetes/base"
# In the archive the module is at the root.
grep -rlF "$module" "$folder/envoy" | xargs sed -i "s|$module|$(basename "$module")|"
(cd "$folder" && sha256sum prefix_router.wasm > prefix_router.wasm.sha256)

# The same archive from the same commit.
tar -c -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX \
  --mtime="@$(git log -1 --format=%ct)" "$name" | gzip -9n > "$folder.tar.gz"
rm -rf "$folder"

# What somebody else finds in it.
mkdir "$dist/check"
tar -x -C "$dist/check" -f "$folder.tar.gz"
(cd "$dist/check/$name" && sha256sum -c --quiet prefix_router.wasm.sha256 &&
  "$envoy" --mode validate --log-level error -c envoy/envoy.yaml)
cp "$dist/check/$name"/prefix_router.* "$dist"
rm -rf "$dist/check"
(cd "$dist" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256" && ls -l)
